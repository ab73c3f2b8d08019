// Package doctor finds out what keeps a relay from working, or will one day: it
// gathers facts from Postgres and RabbitMQ, and makes findings of them. It changes
// nothing on either: see session and amqpProbe.
package doctor

import (
	"context"
	"crypto/tls"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/replication"
)

// Options say what a relay would use, and how far to look.
type Options struct {
	// Connect opens a connection to the database with these start-up parameters beside
	// its own, and in a mode that keeps no prepared statements, since poolers lose them.
	// The error says how to fix it by a method Hint() string. Examine closes the connection.
	Connect func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error)
	Table   outbox.Table
	Slot    string
	// Publication is its name as in the catalog. Slot and Publication are those of the Shard.
	Publication string
	Shard       outbox.Shard
	// Poll: the relay only sweeps, and needs neither slot nor publication.
	Poll bool
	// KeepPublished is how long published messages are kept; 0: not at all.
	KeepPublished time.Duration
	// AppRole is the application's role, or "" to leave it out.
	AppRole string

	// AMQPURL is the broker's; "" leaves the broker out.
	AMQPURL string
	// ManagementURL is that of RabbitMQ's HTTP API; "" stands for the usual port of the
	// same host. Without a user it is asked as the user of AMQPURL.
	ManagementURL string
	// TLS is used for amqps:// and https:// in place of what AMQPURL says; may be nil.
	TLS *tls.Config
	// Exchange is that of rows that name none.
	Exchange string
	// NoProbe: the broker is not asked to take messages, nor where they would go.
	NoProbe bool

	// timeout is how long one server may take in all; 0: 30 seconds. Tests set it.
	timeout time.Duration
	// now is this machine's clock; nil: time.Now. Tests set it.
	now func() time.Time
}

func (o Options) names() replication.Names {
	return replication.Names{Table: o.Table, Publication: o.Publication, Slot: o.Slot, Shard: o.Shard}
}

// Examine looks at both servers, and returns what it found in an order that reads from
// the ground up. What cannot be reached or asked is a finding, too. It takes at most
// about a minute where a server does not answer, and well under a second where all do.
func Examine(ctx context.Context, o Options) []Finding {
	if o.timeout == 0 {
		o.timeout = 30 * time.Second
	}
	if o.now == nil {
		o.now = time.Now
	}
	var facts facts
	facts.database = o.gatherDatabase(ctx)
	if o.AMQPURL != "" {
		facts.broker = o.gatherBroker(ctx, facts.database.destinations(o))
	}
	return slices.Concat(judgeDatabase(o, facts.database), judgeBroker(o, facts))
}

// Worst is the level of the worst finding.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Problem || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}
