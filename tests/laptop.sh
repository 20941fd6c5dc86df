#!/bin/bash
# Run a command in the network of a laptop: loopback, a second interface with an address, a default route, and a host
# name that resolves to that address. No packet of the command leaves this machine.
#
#   unshare -nmu bash tests/laptop.sh COMMAND...      as root; -rnmu as anybody else, where the kernel allows it
#
# The other end of the veth pair is a router in a namespace of its own without a route onwards: an address beyond it is
# refused at once, as on a laptop that is offline. Namespaces, mounts and host name end with the last process of COMMAND.
set -eu
name=laptop here=192.168.77.2 router=192.168.77.1

ip link set lo up
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip netns add router
ip link add eth0 type veth peer name eth0 netns router
ip address add "$here/24" dev eth0
ip link set eth0 up
ip route add default via "$router"
ip -n router address add "$router/24" dev eth0
ip -n router link set lo up
ip -n router link set eth0 up
ip -n router route add unreachable default
# A kernel sends one refusal a second; a connection that gets none tries for 7 s.
ip netns exec router bash -c 'echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/icmp_ratelimit'

printf '127.0.0.1 localhost\n::1 localhost\n%s %s\n' "$here" "$name" > /run/netns/hosts
mount --bind /run/netns/hosts /etc/hosts
# As systemd-resolved of a laptop that is offline, a refusal comes at once. Of a name server beyond the router glibc hears
# nothing for 5 s, and torch's store asks for the names of addresses that /etc/hosts does not have (::ffff:127.0.0.1).
echo 'nameserver 127.0.0.53' > /run/netns/resolv.conf
mount --bind /run/netns/resolv.conf /etc/resolv.conf
hostname "$name"

exec "$@"
