// The first process of every pod: it holds the pod's namespaces until it is told to end, and collects orphans.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	go func() {
		for range orphans {
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
					break
				}
			}
		}
	}()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
