package replication_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/streamtest"
)

func TestFastShutdownIsNotDelayed(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t)
	f := streamtest.On(t, server.URL(""))
	f.Setup()
	l := f.Listen()
	f.Exec(`INSERT INTO outbox VALUES (48)`)
	f.WantInserted(l, "0") // from now on the server lets the stream end by itself (replication_active in walsender.c)
	f.Exec(`INSERT INTO outbox SELECT generate_series(49, 57)`)
	f.Exec(`INSERT INTO other SELECT generate_series(1, 10000)`)
	began := time.Now()
	services.Must(t, server.Stop(t.Context(), services.Fast))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the shutdown took %s", took)
	}
	if err := f.WantEnd(l); err == nil {
		t.Error("the stream ended without an error")
	}
	if len(l.Messages) != 9 {
		t.Errorf("%d of 9 rows had arrived", len(l.Messages))
	}
}

func TestSilentServerEndsTheStream(t *testing.T) {
	f := streamtest.New(t)
	u, err := url.Parse(f.URL)
	services.Must(t, err)
	proxy := services.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	f.Setup()
	f.URL = u.String()
	stream := f.Stream()
	stream.SetIntervals(50*time.Millisecond, await.Scaled(2*time.Second))
	l := f.Run(stream)
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	f.WantInserted(l, "1")
	proxy.BlackHole()
	began := time.Now()
	if err := f.WantEnd(l); err == nil || !strings.Contains(err.Error(), "silent") {
		t.Errorf("err = %v", err)
	}
	await.Judge(t, "noticing that the server is silent", time.Since(began), 10*time.Second)
	await.Within(t, "closing the stream", 10*time.Second, stream.Close)
}
