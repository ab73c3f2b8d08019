package console

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// A client with many pages keeps nobody out.
func TestTheOldestStreamOfTheClientWithTheMostEnds(t *testing.T) {
	s := new(streams)
	ended := func(ctx context.Context) bool { return ctx.Err() != nil }
	other, _ := s.open(t.Context(), "other")
	var hogs []context.Context
	for range 3 * mostStreams {
		ctx, _ := s.open(t.Context(), "hog")
		hogs = append(hogs, ctx)
	}
	late, done := s.open(t.Context(), "late")
	if ended(other) || ended(late) || len(s.all) != mostStreams {
		t.Errorf("%d streams; that of another client ended: %v, %v", len(s.all), ended(other), ended(late))
	}
	const left = mostStreams - 2
	for i, ctx := range hogs {
		if ended(ctx) != (i < len(hogs)-left) {
			t.Errorf("stream %d of %d ended: %v", i, len(hogs), ended(ctx))
		}
	}
	if done(); len(s.all) != mostStreams-1 {
		t.Errorf("%d streams after one has ended", len(s.all))
	}
	s = new(streams)
	first, _ := s.open(t.Context(), "0")
	for i := range mostStreams {
		if ctx, _ := s.open(t.Context(), fmt.Sprint(i+1)); ended(ctx) {
			t.Errorf("the newest stream %d ended", i)
		}
	}
	if !ended(first) {
		t.Error("each client has one stream, and the first one did not end")
	}
}

func TestIdleStreamsLockNobodyOut(t *testing.T) {
	_, at := serve(t, checkWait, nil)
	open := func() *bufio.Scanner {
		r, err := http.NewRequestWithContext(await.Context(t), http.MethodGet, at+"/events?of=%2F", http.NoBody)
		must(t, err)
		response, err := http.DefaultClient.Do(r)
		must(t, err)
		t.Cleanup(func() { response.Body.Close() })
		if response.StatusCode != http.StatusOK {
			t.Fatalf("status %d", response.StatusCode)
		}
		return bufio.NewScanner(response.Body)
	}
	reads := func(lines *bufio.Scanner, text string) {
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Errorf("the stream ended without %q: %v", text, lines.Err())
	}
	first := open()
	for range mostStreams {
		reads(open(), "data: ")
	}
	reads(first, "event: displaced")
	for _, method := range []string{http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPost} {
		if status, _ := fetch(t, method, at+"/events?of=%2F"); status != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d", method, status)
		}
	}
}
