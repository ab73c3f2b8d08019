package main

import (
	"context"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Whoever follows the hints gets a running demo.
func TestTheDemoNamesThePermissionsThatItLacks(t *testing.T) {
	broker := services.SharedRabbitMQ(t)
	if broker.ManagementURL() == "" {
		t.Skip("needs the management API of RabbitMQ")
	}
	address, err := url.Parse(services.VHost(t))
	if err != nil {
		t.Fatal(err)
	}
	vhost, user := strings.TrimPrefix(address.Path, "/"), services.Name(t)
	if err := broker.AddUser(t.Context(), user, "s3cr3t"); err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(user, "s3cr3t")
	open := func(u url.URL) error {
		queue, err := openDemoQueue(u.String())
		if err == nil {
			queue.close()
		}
		return err
	}
	says := func(what string, err error, text, hint string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(problem.Hint(err), hint) || strings.Contains(err.Error()+problem.Hint(err), "s3cr3t") {
			t.Errorf("%s: %v; hint: %s", what, err, problem.Hint(err))
		}
	}
	permit := "rabbitmqctl set_permissions -p " + problem.ShellWord(vhost) + " " + user + ` '^amq\.gen-' '.*' '^amq\.gen-'`
	says("no permission in the virtual host", open(*address), "refused for user", permit)
	for what, p := range map[string]services.Permissions{
		"those of a relay":  {Write: ".*"},
		"read-only":         {Read: ".*"},
		"without reading":   {Configure: ".*", Write: ".*"},
		"without configure": {Write: ".*", Read: ".*"},
		"for other names":   {Configure: "^demo", Write: "^demo", Read: "^demo"},
	} {
		if err := broker.Permit(t.Context(), vhost, user, p); err != nil {
			t.Fatal(err)
		}
		says(what, open(*address), "may not create and read the queue of the demo", permit)
	}
	words := regexp.MustCompile(`'([^']*)'`).FindAllStringSubmatch(demoPermissions, -1)
	if err := broker.Permit(t.Context(), vhost, user, services.Permissions{Configure: words[0][1], Write: words[1][1], Read: words[2][1]}); err != nil {
		t.Fatal(err)
	}
	if err := open(*address); err != nil {
		t.Errorf("after the hint: %v", err)
	}
	wrong := *address
	wrong.User = url.UserPassword(user, "s3cr3t-too")
	says("a wrong password", open(wrong), user, "change_password")
	wrong = *address
	wrong.Path = "/never-there"
	says("a missing virtual host", open(wrong), "not found", "add_vhost never-there && rabbitmqctl set_permissions -p never-there "+user+` '^amq\.gen-' '.*' '^amq\.gen-'`)
	wrong = *address
	wrong.Host = "127.0.0.1:1"
	says("nobody there", open(wrong), "refused", "#")
}

func TestTheDemoNamesThePrivilegesThatItLacks(t *testing.T) {
	env, db := fresh(t)
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone)
	role := services.Name(t)
	execute(t, db, `CREATE ROLE `+role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), "RESET ROLE; DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	execute(t, db, `GRANT INSERT ON outbox TO `+role+`; SET ROLE `+role)
	orders := demoOrders{conn: db, table: outbox.Table{Schema: "public", Name: "outbox"}, queue: "q"}
	_, err := orders.insertOne(t.Context())
	hint := problem.Hint(orders.explained(err))
	for _, grant := range []string{"GRANT USAGE ON SCHEMA public TO ", "GRANT INSERT, SELECT (id) ON public.outbox TO "} {
		if !strings.Contains(hint, grant) {
			t.Fatalf("%v; hint: %s", err, hint)
		}
	}
	execute(t, db, `RESET ROLE; GRANT INSERT, SELECT (id) ON public.outbox TO `+role+`; SET ROLE `+role)
	order, err := orders.insertOne(t.Context())
	if err != nil {
		t.Fatalf("after the hint: %v", err)
	}
	sent := map[outbox.UUID]demoOrder{order.messageID: order}
	if why := orders.rejection(t.Context(), sent); why != "" {
		t.Errorf("rejected: %q", why)
	}
	execute(t, db, `RESET ROLE; UPDATE outbox SET last_error = 'access_refused: no'`)
	if why := orders.rejection(t.Context(), sent); why != "access_refused: no" {
		t.Errorf("rejected: %q", why)
	}
}
