package bench

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// relayProcess is a cdc-relay run to measure.
type relayProcess struct {
	*child
	addr string
}

// startRelay starts a relay without waiting for it.
func (w *world) startRelay(args ...string) (*relayProcess, error) {
	port, err := services.FreePort()
	if err != nil {
		return nil, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	args = append([]string{"run", "--http-addr", addr}, append(args, w.site.RelayArgs...)...)
	cmd := exec.Command(w.program, args...)
	cmd.Env = w.relayEnvironment()
	child, err := startChild("cdc-relay", w.logFile("relay"), cmd, nil)
	if err != nil {
		return nil, err
	}
	return &relayProcess{child: child, addr: addr}, nil
}

// metric reads one number of /metrics without labels; 0 if the relay does not answer.
func (r *relayProcess) metric(ctx context.Context, name string) float64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/metrics", nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), name+" "); is {
			value, _ := strconv.ParseFloat(text, 64)
			return value
		}
	}
	return 0
}

// awaitMetric waits until a number is at least least.
func (r *relayProcess) awaitMetric(ctx context.Context, name string, least float64) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.metric(ctx, name) < least {
		select {
		case <-tick.C:
		case <-r.done:
			return r.failure()
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is %g: %w; the relay's log ends:\n%s",
				name, least, context.Cause(ctx), r.logEnd())
		}
	}
	return nil
}

// The metrics that show the progress of a relay.
const (
	rowsDeleted     = "cdc_relay_rows_deleted_total"
	streamConnected = "cdc_relay_stream_connected"
)
