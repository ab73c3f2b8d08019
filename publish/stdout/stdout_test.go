package stdout

import (
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

// fullDisk takes a number of bytes, then fails.
type fullDisk int

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), int(*d))
	*d -= fullDisk(n)
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// No line follows a torn one.
func TestAFailedWriteEndsThePublisher(t *testing.T) {
	for _, c := range []struct {
		room fullDisk
		want outbox.Outcome
	}{{0, outbox.NotSent}, {100, outbox.Unknown}} { // less than one line
		m := (&publishtest.Maker{}).Make("x", "k", `{}`)
		r := publishtest.Start(t, New(Config{Writer: &c.room}))
		r.AwaitPhase(t, publish.Ready)
		publishtest.AllAre(t, r.Answers(t, m), c.want)
		r.AwaitPhase(t, publish.Closed)
		r.Stop(t)
		if r.Err == nil || !strings.Contains(r.Err.Error(), "write messages: "+syscall.ENOSPC.Error()) {
			t.Errorf("Run returned %v", r.Err)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestThePublisherFulfilsTheContract(t *testing.T) {
	publishtest.Contract(t, func(t *testing.T) publishtest.Subject {
		var out publishtest.Buffer
		return publishtest.Subject{
			Publisher: New(Config{Writer: &out}), Exchange: "x", Key: "k",
			Arrived: func() []publishtest.Seen { return publishtest.LinesSeen(t, out.Lines()) },
		}
	})
}
