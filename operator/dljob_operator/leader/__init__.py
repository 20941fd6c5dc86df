"""Leadership: `lease` among replicas, `releases` among installations; `probes` answers the kubelet."""
