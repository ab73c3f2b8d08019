package provision

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/streamtest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// fixture is a database with a table, without publication and slot.
type fixture struct {
	*streamtest.Fixture
	names Names
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return onDatabase(t, services.Database(t))
}

func onDatabase(t *testing.T, url string) *fixture {
	t.Helper()
	f := streamtest.On(t, url)
	return &fixture{f, Names{Table: f.Source.Table, Publication: f.Source.Publication, Slot: f.Source.Slot}}
}

func (f *fixture) setup(names Names) ([]string, error) {
	f.Helper()
	done, err := Setup(f.Context(), f.Conn.PgConn(), names, await.Hang())
	return texts(done), err
}

func (f *fixture) mustSetUp(names Names) []string {
	f.Helper()
	done, err := f.setup(names)
	must(f, err)
	return done
}

func texts(done []Change) (lines []string) {
	for _, change := range done {
		lines = append(lines, change.Text)
	}
	return lines
}

func (f *fixture) wantProblem(err error, what, fix string) {
	f.Helper()
	var p *problem.Problem
	if !errors.As(err, &p) {
		f.Fatalf("err = %v, want a problem", err)
	}
	if !strings.Contains(p.Error(), what) || !strings.Contains(p.Hint(), fix) {
		f.Errorf("%s\nhint %s\nwant %s\nhint %s", p, p.Hint(), what, fix)
	}
}

func (f *fixture) wantLines(got []string, want ...string) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Errorf("did %q, want %q", got, want)
	}
}

// openAs connects for replication, and sets up on that connection.
func (f *fixture) openAs(url string) (*replication.Stream, []string, error) {
	f.Helper()
	source := replication.Source{Table: f.names.Table, Publication: f.names.Publication, Slot: f.names.Slot}
	stream, err := replication.Connect(f.Context(), pgdial.AddressOf(url, ""), source)
	if err != nil {
		return nil, nil, err
	}
	f.Cleanup(stream.Close)
	done, err := Setup(f.Context(), stream.Conn(), f.names, await.Hang())
	return stream, texts(done), err
}

func (f *fixture) open() (*replication.Stream, []string) {
	f.Helper()
	stream, done, err := f.openAs(f.URL)
	must(f, err)
	return stream, done
}

func (f *fixture) listen() *streamtest.Listener {
	f.Helper()
	stream, _ := f.open()
	return f.Run(stream)
}
