// Package doctor finds what keeps a relay from working, or will do so later. It gathers facts from Postgres and
// RabbitMQ and turns them into findings. It changes nothing on either server: see session and amqpProbe.
package doctor

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Options are the settings of the relay, and which checks to make.
type Options struct {
	// Connect opens a connection to the database with these startup parameters besides its own, in a mode without
	// prepared statements, which poolers lose. Its error may have a method Hint() string that says how to fix it.
	// Examine closes the connection.
	Connect func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error)

	Table       outbox.Table
	TableOwner  string // that of the relay's configuration
	Slot        string
	Publication string // its name in the catalog; Slot and Publication are those of the Shard
	Shard       outbox.Shard

	FailoverSlot  bool          // the slot should be a failover slot
	Poll          bool          // the relay only sweeps, and needs no slot and no publication
	KeepPublished time.Duration // how long published messages are kept; 0: they are deleted
	Operator      bool          // the role is not that of a relay, so its privileges are not judged
	Administrator bool          // the session has the privileges of the relay's role, but is a login of another
	AppRoles      []string      // the roles of applications

	RabbitMQ amqpdial.Address // not set: do not check the broker
	// ManagementURL is the URL of RabbitMQ's HTTP API; "": the usual port on the broker's host. Without a user in it,
	// check logs in as the user of RabbitMQ.
	ManagementURL  string
	Exchange       string // of rows that name none
	EventsExchange string // of the notices of events; "": there are none
	NoProbe        bool   // send no test messages, and do not check routes

	// Relays reads what the relays tell, in the session of the check; nil: nobody is asked.
	Relays func(ctx context.Context, tx pgx.Tx) Relays

	// Tests set the limit for one server, 30 seconds, and this machine's clock.
	timeout time.Duration
	now     func() time.Time
}

func (o Options) names() provision.Names {
	return provision.Names{
		Table: o.Table, Publication: o.Publication, Slot: o.Slot, Shard: o.Shard, Failover: o.FailoverSlot,
	}
}

// Examine checks both servers. The worst findings come first. Those of one level are ordered from the basics up: each
// can explain those after it. A server that cannot be reached, or a question that fails, is also a finding. It takes
// well under a second if both servers answer, and at most about a minute if one does not.
func Examine(ctx context.Context, o Options) []Finding {
	if o.timeout == 0 {
		o.timeout = 30 * time.Second
	}
	if o.now == nil {
		o.now = time.Now
	}
	found := facts{database: o.gatherDatabase(ctx)}
	if o.RabbitMQ.IsSet() {
		found.broker = o.gatherBroker(ctx, found.database.sample.value.sorted())
	}
	all := append(judgeDatabase(o, found.database), judgeBroker(o, found)...)
	found.database.relays.judge(chart{Running, "", &all}, o.Table)
	levels := []Level{Problem, Warning, OK}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return slices.Index(levels, a.Level) - slices.Index(levels, b.Level)
	})
	return all
}

// facts are the results of the questions.
type facts struct {
	database databaseFacts
	broker   *brokerFacts // nil: not checked
}
