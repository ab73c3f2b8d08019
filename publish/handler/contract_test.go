package handler

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(handlerFile); file != "" {
		beHandler(file)
	}
	services.Main(m)
}

func TestThePublisherFulfilsTheContract(t *testing.T) {
	publishtest.Contract(t, func(t *testing.T) publishtest.Subject {
		file := filepath.Join(t.TempDir(), "arrived")
		arrived := func() []publishtest.Seen {
			text, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
			return publishtest.LinesSeen(t, lines)
		}
		return publishtest.Subject{Publisher: newHandler(t, file, 0), Exchange: "x", Key: "k", Arrived: arrived}
	})
}
