package rawnet

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// rawConn reads and writes with system calls that it does not announce to the scheduler. The poller still waits until
// the socket is ready, the deadline passes, or Close is called.
type rawConn struct {
	net.Conn
	poller      syscall.RawConn
	read, write transfer
}

// transfer is one direction. It belongs to the goroutine in Read or in Write.
type transfer struct {
	name   string
	number uintptr // of the system call: read or write
	bytes  []byte
	n      uintptr
	errno  syscall.Errno
	// attempt is the method value of once, stored so that no call allocates a closure.
	attempt func(fd uintptr) (done bool)
}

func wrap(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	poller, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	c := &rawConn{Conn: conn, poller: poller}
	c.read = transfer{name: "read", number: syscall.SYS_READ}
	c.write = transfer{name: "write", number: syscall.SYS_WRITE}
	c.read.attempt, c.write.attempt = c.read.once, c.write.once
	return c
}

// once tries the system call. It returns false if the poller must wait.
func (t *transfer) once(fd uintptr) bool {
	for {
		t.n, _, t.errno = syscall.RawSyscall(t.number, fd,
			uintptr(unsafe.Pointer(unsafe.SliceData(t.bytes))), uintptr(len(t.bytes)))
		if t.errno != syscall.EINTR {
			return t.errno != syscall.EAGAIN
		}
	}
}

func (t *transfer) result(waiting error) (int, error) {
	t.bytes = nil
	switch {
	case waiting != nil:
		return 0, waiting
	case t.errno != 0:
		return 0, os.NewSyscallError(t.name, t.errno)
	}
	return int(t.n), nil
}

func (c *rawConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.read.bytes = b
	n, err := c.read.result(c.poller.Read(c.read.attempt))
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, c.opError("read", err)
}

func (c *rawConn) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		c.write.bytes = b[written:]
		n, err := c.write.result(c.poller.Write(c.write.attempt))
		written += n
		if err != nil {
			return written, c.opError("write", err)
		}
	}
	return written, nil
}

// opError adds the addresses to an error, as the net package does.
func (c *rawConn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if already, ok := err.(*net.OpError); ok {
		already.Op = op // the poller's name for it is raw-read
		return already
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
