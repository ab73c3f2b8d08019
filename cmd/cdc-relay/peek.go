package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/celery"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

func (p *process) peekCommand() *cli.Command {
	return &cli.Command{
		Name:      "peek",
		Usage:     "show the messages that wait, as they would be sent",
		UsageText: "cdc-relay peek [FILTERS] [FLAGS]",
		Description: `Shows messages of the outbox in the order in which they would be published, and neither
deletes nor locks nor marks them. With --json each is as --publisher stdout would print it,
with its payload, or redacted_payload if that is set. First come those that are due, then those
that wait for their time, then those behind one of these in their ordering key. Messages that
will not be published (expired, or replaced by a newer one of their coalesce key) are omitted.
The relay at --http-addr tells its settings, such as --header-columns. --exchange is a filter
here; without a relay, its exchange comes from --config or CDC_RELAY_EXCHANGE.

EXAMPLES

  cdc-relay peek --limit 1 --json
  cdc-relay peek --ordering-key customer-7
  cdc-relay peek --json | jq -c '.messages[] | [.routing_key, .payload]'`,
		Flags: asking(describe(pageFlags(peekFilterFlags(), "format", "http-addr", "database-url", "table", "config",
			"header-columns", "ordering-key-header", "on-dead-letter"), usages{"http-addr": askForSettings})),
		Action: p.with(p.resolvePeek, p.peek),
	}
}

// peekFilterFlags are the filters without those for rejected messages.
func peekFilterFlags() []cli.Flag {
	picked := slices.DeleteFunc(filterFlags(false), func(f cli.Flag) bool {
		return f.Names()[0] == "id" || f.Names()[0] == "reason"
	})
	return describe(picked, sinceCreated)
}

// peekView is the JSON output of peek.
type peekView struct {
	Messages []peekedView `json:"messages"`
	// Next is the cursor for --after; null on the last page.
	Next *string `json:"next"`
}

type peekedView struct {
	State       operator.State `json:"state"`
	AvailableAt *time.Time     `json:"available_at"`
	// Error is why the message would become a dead letter; null: it can be sent.
	Error *string `json:"error"`
	wire.Line
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 *string         `json:"payload_base64"`
	NotShown      show.NotShown   `json:"not_shown,omitempty"`
}

func (c *config) peekedViewOf(m operator.Peeked) peekedView {
	c.relay.AddOrderingKey(m.Message)
	line, err := wire.NewLine(m.Message, c.exchange)
	for _, l := range m.Large {
		if err == nil && l.Column != "redacted_payload" && !strings.HasPrefix(l.Column, "payload") {
			err = fmt.Errorf("%s is too large to check: %s on disk", l.Column, show.Bytes(l.Stored))
		}
	}
	v := peekedView{
		State: m.State, AvailableAt: show.TimeOrNull(m.AvailableAt), Line: line, NotShown: show.NotShownOf(m.Large),
	}
	if err != nil {
		text := err.Error()
		v.Error = &text
		v.Line = wire.Line{
			ID: m.ID, MessageID: m.MessageID.String(), Exchange: show.ValueOr(m.Exchange, c.exchange),
			RoutingKey:  m.RoutingKey,
			OrderingKey: m.OrderingKey, Headers: m.Headers, Properties: m.Properties,
			PossibleDuplicate: m.PossibleDuplicate,
		}
	}
	v.CreatedAt = show.JSONTime(m.CreatedAt)
	v.Headers, v.Properties = show.RawJSON(celery.HideBody(v.Headers)), show.RawJSON(v.Properties)
	switch {
	case m.IsRedacted:
		v.Payload = show.RawJSON(m.Redacted)
	case !m.PayloadShown:
	case m.Binary:
		text := base64.StdEncoding.EncodeToString(m.Message.Payload)
		v.PayloadBase64 = &text
	default:
		v.Payload = show.RawJSON(m.Message.Payload)
	}
	return v
}

// peekedSize is a size for the column BYTES.
func peekedSize(size operator.Count) string {
	if size.Precision != operator.Exact {
		return fmt.Sprintf(">%d", size.N)
	}
	return fmt.Sprint(size.N)
}

func (p *process) resolvePeek(c *cli.Context) (*config, error) {
	cfg, err := p.resolve(c)
	if err != nil {
		return nil, err
	}
	// The flag --exchange is a filter here. The relays' exchange may also come from the environment.
	exchange := settings.Pick(relaySettings(), "exchange")[0]
	if v, ok := p.reader().FromEnvironment(exchange.Info); ok {
		err = exchange.Take(cfg, v.Text)
		cfg.given[exchange.Name] = v
	}
	return cfg, errors.Join(err, cfg.validate())
}

func (p *process) peek(ctx context.Context, s *session) error {
	cfg := p.asRelay(ctx, s)
	return listing[operator.Peeked]{
		what: "messages",
		read: func(page operator.Page) (operator.Listing[operator.Peeked], error) {
			return s.Peek(
				ctx, cfg.selected.filter, page, show.DeadLettersBlock(&cfg.relay), cfg.relay.HeaderColumns,
				cfg.format == formatJSON,
			)
		},
		view:    func(rows []operator.Peeked, next *string) any { return peekView{each(rows, cfg.peekedViewOf), next} },
		columns: []string{"ID", "STATE", "AVAILABLE", "EXCHANGE", "ROUTING KEY", "ORDERING KEY", "BYTES", "ERROR"},
		cells: func(m operator.Peeked) []string {
			v, available := cfg.peekedViewOf(m), "-"
			if m.AvailableAt != nil {
				available = show.Time(*m.AvailableAt)
			}
			return []string{
				fmt.Sprint(v.ID), string(v.State), available, show.Cell(v.Exchange), show.Cell(v.RoutingKey),
				show.CellOrDash(v.OrderingKey), peekedSize(m.PayloadSize), show.CellOrDash(v.Error),
			}
		},
	}.show(p, cfg)
}
