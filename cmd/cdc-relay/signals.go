package main

import (
	"context"
	"strings"

	"github.com/cdc-relay/cdc-relay/statsd"
)

// signalling is where the relay tells of itself beside its own HTTP address.
type signalling struct {
	statsd statsd.Config // no address: nowhere
}

func defaultSignalling() signalling {
	return signalling{statsd: statsd.Config{Prefix: "cdc_relay"}}
}

func signalSettings() []*setting {
	return []*setting{
		{
			name: "statsd-addr", value: "ADDRESS", mayBeEmpty: true,
			usage: "Send the metrics to DogStatsD every ten seconds: host:port (UDP) or unix:///path. Default: nowhere.",
			set: func(c *config, text string) error {
				if c.signalling.statsd.Addr = text; text == "" {
					return nil
				}
				return statsd.CheckAddr(text)
			},
		},
		{
			name: "statsd-prefix", value: "NAME", byDefault: "cdc_relay", mayBeEmpty: true,
			usage: "What comes before the names of metrics in DogStatsD, with a dot.",
			set: func(c *config, text string) error {
				c.signalling.statsd.Prefix = text
				return statsd.CheckPrefix(text)
			},
		},
		{
			name: "statsd-tags", value: "NAME:VALUE,…", mayBeEmpty: true,
			usage: "Tags for each metric in DogStatsD, such as env:prod,team:shop. Default: none.",
			set: func(c *config, text string) error {
				if c.signalling.statsd.Tags = nil; text == "" {
					return nil
				}
				for tag := range strings.SplitSeq(text, ",") {
					c.signalling.statsd.Tags = append(c.signalling.statsd.Tags, strings.TrimSpace(tag))
				}
				return statsd.CheckTags(c.signalling.statsd.Tags)
			},
		},
	}
}

// bridge sends the metrics to DogStatsD until ctx is done, where that is wanted.
func (s *service) bridge(ctx context.Context) {
	if s.statsd != nil {
		s.statsd.Run(ctx)
	}
}

// newStatsd is nil where no address is given.
func (s *service) newStatsd(to statsd.Config) (err error) {
	if to.Addr == "" {
		return nil
	}
	s.statsd, err = statsd.New(to, s.registry, s.log)
	return err
}
