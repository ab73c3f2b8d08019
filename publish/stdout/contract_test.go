package stdout

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

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
