package handler

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// orphans reaps the processes that handlers have left to this process. It never waits for the handler itself: os/exec
// does that.
type orphans struct {
	mu      sync.Mutex
	handler int // its PID, until os/exec has waited for it
}

// watch reaps until end is called.
func (o *orphans) watch() (end func()) {
	ended, stop, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		defer close(done)
		for {
			o.reap()
			select {
			case <-ended:
			case <-stop:
				return
			}
		}
	}()
	return func() {
		signal.Stop(ended)
		close(stop)
		<-done
	}
}

// reap tries all processes: wait fails for those of others.
func (o *orphans) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	entries, _ := os.ReadDir("/proc") // without it, orphans stay
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != o.handler {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}
