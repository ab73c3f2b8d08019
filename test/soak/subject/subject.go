// Package subject describes the programs that the soak and the bench compare: cdc-relay, and others that do the same
// work. test/peers/README.md says how to add one.
package subject

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

// Relay is the name of cdc-relay among the subjects.
const Relay = "cdc-relay"

// Subject is a program that publishes an outbox to RabbitMQ.
//
// A program other than cdc-relay is called with one argument: "setup" creates its tables, "run" publishes until
// SIGTERM, and "version" prints one line. It finds the servers in DATABASE_URL and AMQP_URL. If "run" ends by itself,
// it is started again after a second.
type Subject struct {
	Name string
	Form load.Form
}

// Program returns the name of its file.
func (s Subject) Program() string {
	if s.Name == Relay {
		return Relay
	}
	return "soak-" + s.Name
}

// All returns the subjects in the order of a report.
func All() []Subject {
	return []Subject{
		{Name: Relay, Form: load.Form{
			Insert: `INSERT INTO public.outbox (message_id, routing_key, ordering_key, payload)
				VALUES ($1::text::uuid, $2, $3, $4::text::json)`,
			Waiting: `SELECT message_id FROM public.outbox`,
		}},
		{Name: "poller", Form: load.Form{
			Insert: `INSERT INTO poller_outbox (message_id, queue, key, body)
				VALUES ($1::text::uuid, $2, $3, $4)`,
			Waiting: `SELECT message_id FROM poller_outbox`,
		}},
		{Name: "watermill", Form: load.Form{
			// What forwarder.Publisher and sql.Publisher insert: the message in an envelope.
			Insert: `INSERT INTO watermill_outbox (uuid, payload, metadata, transaction_id)
				VALUES ($1::text, json_build_object('destination_topic', $2::text, 'uuid', $1::text,
					'payload', translate(encode(convert_to($4::text, 'UTF8'), 'base64'), E'\n', ''),
					'metadata', json_build_object('key', coalesce($3::text, ''))), '{}', pg_current_xact_id())`,
			Waiting: `SELECT m.uuid::uuid FROM watermill_outbox m, watermill_offsets_outbox o
				WHERE (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)`,
		}},
		{Name: "river", Form: load.Form{
			// What Client.InsertTx inserts: a job whose arguments are the message.
			Insert: `INSERT INTO river_job (kind, queue, max_attempts, args)
				VALUES ('publish', 'default', 1000, jsonb_build_object(
					'id', $1::text, 'queue', $2::text, 'key', $3::text,
					'body', translate(encode(convert_to($4::text, 'UTF8'), 'base64'), E'\n', '')))`,
			Waiting: `SELECT (args->>'id')::uuid FROM river_job WHERE state <> 'completed'`,
		}},
	}
}

// Find returns the subject with the name, or false.
func Find(name string) (Subject, bool) {
	for _, s := range All() {
		if s.Name == name {
			return s, true
		}
	}
	return Subject{}, false
}

// Names lists the names for people.
func Names() string {
	var names []string
	for _, s := range All() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// Group is faults of one sort.
type Group struct {
	Name   string
	Faults []string
}

// Groups are the faults that concern every subject: of its process, of both servers, and of the network to them. The
// others concern what only cdc-relay has, such as a slot.
func Groups() []Group {
	return []Group{
		{"process killed, stopped, frozen", []string{
			"relay-kill-all", "relay-kill-leader-again-and-again", "relay-stop-all", "relay-freeze-all",
		}},
		{"Postgres killed, stopped, frozen", []string{
			"postgres-stop-fast", "postgres-stop-immediate", "postgres-kill", "postgres-freeze",
		}},
		{"network to Postgres", []string{
			"postgres-cut", "postgres-refuse", "postgres-blackhole", "postgres-blackhole-upstream",
			"postgres-blackhole-downstream", "postgres-late-both-ways",
		}},
		{"RabbitMQ killed, stopped, frozen", []string{"rabbitmq-kill", "rabbitmq-restart", "rabbitmq-pause"}},
		{"network to RabbitMQ", []string{
			"rabbitmq-cut", "rabbitmq-refused", "rabbitmq-black-hole", "rabbitmq-black-hole-upstream",
			"rabbitmq-black-hole-downstream",
		}},
	}
}

// Faults lists the faults of all groups, with commas.
func Faults() string {
	var names []string
	for _, g := range Groups() {
		names = append(names, g.Faults...)
	}
	return strings.Join(names, ",")
}

// Version returns the first line of the output of a subject's program. cdc-relay has a flag for it, others a verb.
func Version(ctx context.Context, program string, peer bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	argument := "--version"
	if peer {
		argument = "version"
	}
	output, err := exec.CommandContext(ctx, program, argument).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, argument, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
	return strings.TrimPrefix(line, "cdc-relay "), nil
}
