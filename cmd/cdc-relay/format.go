package main

import "github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"

// Values of --format.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func formatSetting() setting {
	return setting{
		Info: settings.Info{
			Name: "format", Placeholder: "table|json", Default: formatTable,
			Usage: "table for people; json for scripts, with stable names.",
		},
		Set: func(c *config, text string) error {
			c.format = text
			return settings.OneOf(text, formatTable, formatJSON)
		},
	}
}

// jsonSetting comes after formatSetting in the list.
func jsonSetting() setting { return settings.Shorthand("json", formatSetting(), formatJSON) }
