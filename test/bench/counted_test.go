package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"

	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Makes the test program act as a relay if the environment asks for it: a separate process, so that nothing else is
// counted.
func TestMain(m *testing.M) {
	if os.Getenv(countedSlot) != "" {
		if err := runCounted(); err != nil {
			slog.Error("counted relay", "error", err)
			os.Exit(1)
		}
		return
	}
	services.Main(m)
}

// The settings of the counted relay.
const (
	countedDatabase = "BENCH_COUNTED_DATABASE"
	countedBroker   = "BENCH_COUNTED_BROKER"
	countedSlot     = "BENCH_COUNTED_SLOT"
)

// spent is what a relay has used since its start.
type spent struct {
	Allocations int64
	Writes      int64 // system calls that write
}

// runCounted runs a relay until SIGTERM. It writes what it has used at each SIGUSR1, and at the end.
func runCounted() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := relay.DefaultConfig()
	config.DatabaseURL = os.Getenv(countedDatabase)
	config.Slot, config.Publication = os.Getenv(countedSlot), os.Getenv(countedSlot)
	config.PollInterval = 10 * time.Second // timed work counts more on a slow machine
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	publisher, err := amqp.New(amqp.Config{
		URL: os.Getenv(countedBroker), MaxInFlight: config.MaxInFlight, SendTimeout: config.SendTimeout, Logger: log,
	})
	if err != nil {
		return err
	}
	r, err := relay.New(config, publisher, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			_ = reportSpent() // its reader would notice
		}
	}()
	return errors.Join(r.Run(ctx), reportSpent())
}

func reportSpent() error {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	process, err := procfs.Self()
	if err != nil {
		return err
	}
	io, err := process.IO()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(spent{
		Allocations: int64(memory.Mallocs), Writes: int64(io.SyscW),
	})
}

// countedRelay is such a process.
type countedRelay struct {
	cmd    *exec.Cmd
	output *json.Decoder
}

// startCounted starts a counted relay. It ends with the test at the latest.
func startCounted(t *testing.T, database, broker, slot string) *countedRelay {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), countedDatabase+"="+database, countedBroker+"="+broker, countedSlot+"="+slot,
		"GOMAXPROCS=1") // with more, a busy machine makes the relay send single messages
	cmd.Stderr = t.Output()
	output, err := cmd.StdoutPipe()
	services.Must(t, err)
	services.Must(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil { // the test has failed
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return &countedRelay{cmd: cmd, output: json.NewDecoder(output)}
}

// spent returns what it has used so far.
func (r *countedRelay) spent(t *testing.T) spent {
	t.Helper()
	services.Must(t, r.cmd.Process.Signal(syscall.SIGUSR1))
	return r.read(t)
}

func (r *countedRelay) read(t *testing.T) spent {
	t.Helper()
	var s spent
	services.Must(t, r.output.Decode(&s))
	return s
}

// stop stops it and returns what it has used.
func (r *countedRelay) stop(t *testing.T) spent {
	t.Helper()
	services.Must(t, r.cmd.Process.Signal(syscall.SIGTERM))
	s := r.read(t)
	services.Must(t, r.cmd.Wait())
	return s
}

// tap counts what clients send to a server.
type tap struct {
	statements   atomic.Int64 // on ordinary connections to Postgres
	frames, sent atomic.Int64 // AMQP frames, and their bytes
}

// in puts the tap in front of the server of an address. read reads what a client sends on one connection, which the
// server gets as well.
func (p *tap) in(t *testing.T, address string, read func(client io.Reader)) string {
	t.Helper()
	to, err := url.Parse(address)
	services.Must(t, err)
	to.Host = services.Between(t, to.Host, func(client, server net.Conn) {
		sent := io.TeeReader(client, server)
		read(sent)
		_, _ = io.Copy(io.Discard, sent)
	}, services.Answers)
	return to.String()
}

func (p *tap) amqp(client io.Reader) {
	buffered := bufio.NewReaderSize(client, 1<<16)
	const greeting = 8 // AMQP and the version
	_, _ = buffered.Discard(greeting)
	for frame := range services.AMQPFrames(buffered) {
		p.frames.Add(1)
		p.sent.Add(int64(len(frame)))
	}
}

func (p *tap) postgres(client io.Reader) {
	buffered := bufio.NewReaderSize(client, 1<<16)
	var length [4]byte // of itself and the body
	body := func() int64 { return int64(binary.BigEndian.Uint32(length[:])) - int64(len(length)) }
	_, _ = io.ReadFull(buffered, length[:])
	startup, _ := io.ReadAll(io.LimitReader(buffered, body()))
	if bytes.Contains(startup, []byte("\x00replication\x00")) {
		return
	}
	for {
		kind, err := buffered.ReadByte()
		if err != nil {
			return
		}
		if kind == 'Q' || kind == 'E' { // a simple query, or Execute
			p.statements.Add(1)
		}
		_, _ = io.ReadFull(buffered, length[:])
		_, _ = io.CopyN(io.Discard, buffered, body())
	}
}
