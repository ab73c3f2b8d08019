package replication_test

import (
	"net/url"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/streamtest"
)

// After a failover, the first host of the URL, or the first address of a name, may not answer at all.
func TestAnUnreachableHostDoesNotHideTheNext(t *testing.T) {
	f := streamtest.New(t)
	deaf := services.NewDeaf(t)
	address := f.URL
	connects := func(change func(*url.URL)) {
		t.Helper()
		u, err := url.Parse(address)
		services.Must(t, err)
		change(u)
		f.URL = u.String()
		f.Stream().Close()
	}
	connects(func(u *url.URL) { u.Host = deaf.Addr() + "," + u.Host })
	connects(func(u *url.URL) { u.Host = deaf.Named(t, u.Host) })
	connects(func(u *url.URL) {
		u.Host = services.NewDeaf(t).Named(t, u.Host)
		u.RawQuery = "sslmode=prefer&connect_timeout=2"
	})
}
