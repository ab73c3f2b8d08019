package main

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// showStats prints the table for people.
func (p *process) showStats(cfg *config, v show.Stats) error {
	g := p.terminal.Table()
	v.Facts(g, &cfg.relay, p.terminal.Paint)
	if err := g.Write(); err != nil {
		return err
	}
	return p.showFailing(v)
}

func (p *process) showFailing(v show.Stats) error {
	if len(v.TopFailing) == 0 {
		return nil
	}
	note := ""
	if v.Precision["top_failing"] != operator.Exact {
		note = ", of the rows that come first"
	}
	fmt.Fprintf(p.terminal.Out, "\nfailing most%s\n", note)
	g := p.terminal.Table("ROUTING KEY", "ERROR", "IN RETRY", "DEAD", "EXAMPLE").Fit()
	for _, f := range v.TopFailing {
		g.Row(show.Shortened(f.RoutingKey, 60), show.Shortened(f.Error, 30), show.Number(f.Retrying), show.Number(f.Dead), show.Shortened(f.Example, 80))
	}
	return g.Write()
}
