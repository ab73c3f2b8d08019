package replication

import (
	"net/url"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// After a failover, the first host of the URL, or the first address of a name, may not answer at all.
func TestAnUnreachableHostDoesNotHideTheNext(t *testing.T) {
	f := newFixture(t)
	deaf := services.NewDeaf(t)
	connects := func(change func(*url.URL)) {
		t.Helper()
		u, err := url.Parse(f.url)
		if err != nil {
			t.Fatal(err)
		}
		change(u)
		stream, _, err := Open(t.Context(), pgdial.AddressOf(u.String(), ""), f.names, await.Hang())
		if err != nil {
			t.Fatal(err)
		}
		stream.Close()
	}
	connects(func(u *url.URL) { u.Host = deaf.Addr() + "," + u.Host })
	connects(func(u *url.URL) { u.Host = deaf.Named(t, u.Host) })
	connects(func(u *url.URL) {
		u.Host = services.NewDeaf(t).Named(t, u.Host)
		u.RawQuery = "sslmode=prefer&connect_timeout=2"
	})
}
