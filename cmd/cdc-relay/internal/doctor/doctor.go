// Package doctor finds what keeps a relay from working, or will do so later. It gathers facts from Postgres and
// RabbitMQ and turns them into findings. It changes nothing on either server: see session and amqpProbe.
package doctor

import (
	"context"
	"crypto/tls"
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
	Table   outbox.Table
	// TableOwner is that of the relay's configuration.
	TableOwner string
	Slot       string
	// Publication is its name in the catalog. Slot and Publication are those of the Shard.
	Publication string
	Shard       outbox.Shard
	// FailoverSlot: the slot should be a failover slot.
	FailoverSlot bool
	// Poll: the relay only sweeps. It needs no slot and no publication.
	Poll bool
	// KeepPublished is how long published messages are kept; 0: they are deleted.
	KeepPublished time.Duration
	// Operator: the role is not that of a relay, so its privileges are not judged.
	Operator bool
	// Administrator: the session has the privileges of the relay's role, but is a login of another.
	Administrator bool
	// AppRoles are the roles of applications; none: do not check them.
	AppRoles []string

	// RabbitMQ is the broker's address; not set: do not check the broker.
	RabbitMQ amqpdial.Address
	// ManagementURL is the URL of RabbitMQ's HTTP API; "": the usual port on the broker's host. Without a user in it,
	// check logs in as the user of RabbitMQ.
	ManagementURL string
	// TLS replaces what RabbitMQ says, for amqps:// and https://; may be nil.
	TLS *tls.Config
	// Exchange is the exchange of rows that name none.
	Exchange string
	// EventsExchange is the exchange of the notices of events; "": there are none.
	EventsExchange string
	// NoProbe: send no test messages, and do not check routes.
	NoProbe bool

	// timeout is the limit for one server; 0: 30 seconds. Tests set it.
	timeout time.Duration
	// now returns this machine's time; nil: time.Now. Tests set it.
	now func() time.Time
}

func (o Options) names() provision.Names {
	return provision.Names{
		Table: o.Table, Publication: o.Publication, Slot: o.Slot, Shard: o.Shard, Failover: o.FailoverSlot,
	}
}

// Examine checks both servers. It orders the findings from the basics up: each can explain those after it. A server
// that cannot be reached, or a question that fails, is also a finding. It takes well under a second if both servers
// answer, and at most about a minute if one does not.
func Examine(ctx context.Context, o Options) []Finding {
	if o.timeout == 0 {
		o.timeout = 30 * time.Second
	}
	if o.now == nil {
		o.now = time.Now
	}
	var facts facts
	facts.database = o.gatherDatabase(ctx)
	if o.RabbitMQ.IsSet() {
		facts.broker = o.gatherBroker(ctx, facts.database.destinations(o))
	}
	return slices.Concat(judgeDatabase(o, facts.database), judgeBroker(o, facts))
}

// Worst returns the level of the worst finding.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Problem || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}
