//go:build !linux

package handler

import "sync"

// orphans does nothing here: containers run Linux.
type orphans struct {
	mu      sync.Mutex
	handler int
}

func (*orphans) watch() (end func()) { return func() {} }
