package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// publisher is a process that publishes, and is measured. Its output goes to a file.
type publisher struct {
	name string
	cmd  *exec.Cmd
	log  string
	addr string        // of the relay's /metrics; "": a limit
	done chan struct{} // closed when the process has ended
}

// start starts the publisher of the case. A relay without a backlog streams when start returns.
func (r *run) start(ctx context.Context) error {
	if r.IsLimit {
		order, err := json.Marshal(limitOrder{
			AMQPURL: r.world.amqp, Spec: r.world.spec, Messages: r.total(), Window: r.window,
		})
		if err != nil {
			return err
		}
		cmd := exec.Command(r.site.Self, "limit")
		cmd.Env, cmd.Stdin = environment(), bytes.NewReader(order)
		return r.startProcess(&publisher{name: "publish", cmd: cmd})
	}
	port, err := services.FreePort()
	if err != nil {
		return err
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	cmd := exec.Command(r.Program, append([]string{"run", "--http-addr", addr}, r.site.RelayArgs...)...)
	cmd.Env = r.world.relayEnvironment()
	if err := r.startProcess(&publisher{name: "relay", cmd: cmd, addr: addr}); err != nil || r.backlog > 0 {
		return err
	}
	const streamTimeout = time.Minute
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	return r.publisher.awaitMetric(ctx, "cdc_relay_stream_connected", 1)
}

func (r *run) startProcess(p *publisher) error {
	p.log, p.done = r.world.logFile(p.name), make(chan struct{})
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.name, err)
	}
	defer func() { _ = file.Close() }() // the process has its own descriptor
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches it only through us
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	r.publisher = p
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // cmd.ProcessState has the result
	}()
	return nil
}

func (p *publisher) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// cpu returns the processor time so far.
func (p *publisher) cpu() (time.Duration, error) {
	if p.ended() {
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), nil
	}
	return gauge.CPU(p.cmd.Process.Pid)
}

// memory is the maximum resident memory; 0 if the process has ended.
func (p *publisher) memory() (megabytes float64, err error) {
	if p.ended() {
		return 0, nil
	}
	bytes, err := gauge.PeakMemory(p.cmd.Process.Pid)
	return float64(bytes) / (1 << 20), err
}

// failure says why the process failed; nil: it did not.
func (p *publisher) failure() error {
	<-p.done
	if p.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%s ended with %s; its log ends:\n%s", p.name, p.cmd.ProcessState, p.logEnd())
}

// settled waits, after all messages have arrived, until nothing is left to do.
func (p *publisher) settled(ctx context.Context, messages int) error {
	if p.addr != "" {
		return p.awaitMetric(ctx, "cdc_relay_rows_deleted_total", float64(messages))
	}
	select {
	case <-p.done:
		return p.failure()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop sends SIGTERM and waits.
func (p *publisher) stop() error {
	const stopTimeout = 40 * time.Second
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
		return p.failure()
	case <-time.After(stopTimeout):
		err := p.cmd.Process.Kill()
		<-p.done
		return errors.Join(fmt.Errorf("%s has not stopped %s after SIGTERM", p.name, stopTimeout), err)
	}
}

func (p *publisher) logEnd() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 2048
	return string(content[max(0, len(content)-most):])
}

// awaitMetric waits until a metric is at least least.
func (p *publisher) awaitMetric(ctx context.Context, metric string, least float64) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.metric(ctx, metric) < least {
		select {
		case <-tick.C:
		case <-p.done:
			return errors.Join(fmt.Errorf("%s has ended", p.name), p.failure())
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is %g: %w; the log ends:\n%s",
				metric, least, context.Cause(ctx), p.logEnd())
		}
	}
	return nil
}

// metric reads one number of /metrics without labels; 0 if the relay does not answer.
func (p *publisher) metric(ctx context.Context, name string) float64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/metrics", nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	found := regexp.MustCompile(`(?m)^` + name + ` (.*)$`).FindSubmatch(text)
	if err != nil || found == nil {
		return 0
	}
	value, _ := strconv.ParseFloat(string(found[1]), 64)
	return value
}
