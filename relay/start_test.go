package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// It gets it at the start, and in the log of a relay that lost the privilege later.
func TestARoleWithoutConnectGetsTheMissingGrant(t *testing.T) {
	i := newInstance(t)
	u, err := url.Parse(i.config.DatabaseURL)
	must(t, err)
	database, role := strings.TrimPrefix(u.Path, "/"), services.Name(t)
	for _, statement := range []string{
		"CREATE ROLE " + role + " LOGIN PASSWORD 'secret'", "REVOKE CONNECT ON DATABASE " + database + " FROM PUBLIC",
	} {
		i.exec(statement)
	}
	t.Cleanup(func() { _, _ = i.db.Exec(context.Background(), "DROP ROLE "+role) })
	u.User = url.UserPassword(role, "secret")
	i.config.DatabaseURL = u.String()
	r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	var log bytes.Buffer
	newOutageLog(slog.New(slog.NewJSONHandler(&log, nil)), r.address).Report(event.StreamDown, "no stream", r.store.Check(t.Context()))
	if !strings.Contains(log.String(), "GRANT CONNECT ON DATABASE") {
		t.Errorf("no hint: %s", log.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	err = r.Run(ctx)
	want := `GRANT CONNECT ON DATABASE ` + database + ` TO ` + role + `;`
	if !problem.Is(err) || problem.Hint(err) != want {
		t.Fatalf("%v\nhint %s\nwant %s", err, problem.Hint(err), want)
	}
}

// A role with TRIGGER may use it after the start: the relay ends with the error of a start, and does not run its code for
// long.
func TestCodeOfAnotherRoleEndsARunningRelay(t *testing.T) {
	i := newInstance(t)
	role := services.Name(t)
	exec := func(statements string) {
		t.Helper()
		if _, err := i.db.Exec(context.Background(), statements); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE ROLE " + role + "; GRANT TRIGGER ON outbox TO " + role + "; GRANT CREATE ON SCHEMA public TO " + role)
	t.Cleanup(func() { exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role) })
	r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	r.lookEvery = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	exec("INSERT INTO outbox (routing_key, payload) VALUES ('" + i.queue + "', '1')")
	i.await("the message", func() bool { return i.arrived() == 1 })
	exec("SET ROLE " + role + "; CREATE FUNCTION public.hung() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'; " +
		"CREATE TRIGGER hung BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION public.hung(); RESET ROLE")
	if err := <-ended; !errors.Is(err, migrations.ErrOwner) || !strings.Contains(err.Error(), "trigger hung of public.outbox uses") {
		t.Errorf("the relay ended with %v", err)
	}
}

// Only the server knows all its settings.
func TestAParameterThatTheServerRejectsEndsTheStart(t *testing.T) {
	for options, name := range map[string]string{
		"-c no_such_setting=1": "no_such_setting",
		"-c work_mem=much":     "work_mem",
		"-c port=1":            "port",
	} {
		i := newInstance(t)
		u, err := url.Parse(i.config.DatabaseURL)
		must(t, err)
		query := u.Query()
		query.Set("options", options)
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		i.config.DatabaseURL = u.String()
		r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
		ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
		err = r.Run(ctx)
		cancel()
		if !problem.Is(err) || !strings.Contains(err.Error(), name) || problem.Hint(err) == "" {
			t.Errorf("%s: %v", options, err)
		}
	}
}
