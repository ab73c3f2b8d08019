package main

import (
	"fmt"
	"strconv"
)

// Values of --format.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func formatSetting() *setting {
	return &setting{
		name: "format", value: "table|json", byDefault: formatTable,
		usage: "table for people; json for scripts, with stable names.",
		set:   func(c *config, text string) error { c.format = text; return oneOf(text, formatTable, formatJSON) },
	}
}

// jsonSetting comes after formatSetting in the list. It overrides a format that no flag sets.
func jsonSetting() *setting {
	return flagOnly(&setting{
		name: "json", usage: "Short for --format json.",
		set: func(c *config, text string) error {
			on, err := strconv.ParseBool(text)
			if err != nil {
				return fmt.Errorf("%q: want true or false", text)
			}
			if format := c.given["format"]; on && format.source == fromFlag && format.text != formatJSON {
				return fmt.Errorf("contradicts --format %s", format.text)
			}
			if on {
				c.format = formatJSON
			}
			return nil
		},
	})
}
