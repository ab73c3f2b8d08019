package publish

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// An end counts against a message only if it was alone and the other side works. An answer clears the message.
func TestOnlyAMessageSentAloneIsSuspected(t *testing.T) {
	l := NewSuspects()
	one, other := &outbox.Message{Row: outbox.Row{ID: 1}}, &outbox.Message{Row: outbox.Row{ID: 2}}
	is := func(m *outbox.Message, alone bool, ends int) {
		t.Helper()
		if known := l.Of(m); known.MustBeAlone() != alone || known.Alone != ends {
			t.Errorf("%+v; want %v, %d", known, alone, ends)
		}
	}
	is(one, false, 0)
	l.Blame(one, SessionEnd{Stated: true, Worked: true})
	is(one, true, 0)
	l.Blame(other, SessionEnd{Worked: true})
	is(other, false, 0) // a cable may have been pulled
	l.Blame(other, SessionEnd{})
	is(other, true, 0)
	for range 2 * EndsAlone {
		for _, end := range []SessionEnd{{Alone: true, Stated: true}, {Stated: true, Worked: true}} {
			if _, culprit := l.Blame(one, end); culprit {
				t.Fatal("it is charged although the broker answers nothing else, or others were in flight")
			}
		}
	}
	is(one, true, 1)
	for times := 2; times <= EndsAlone+1; times++ {
		if _, culprit := l.Blame(one, SessionEnd{Alone: true, Worked: true}); culprit != (times >= EndsAlone) {
			t.Errorf("alone for the %d. time: culprit %v", times, culprit)
		}
	}
	l.Clear(one)
	is(one, false, 0)
	for id := range int64(2 * mostSuspects) {
		l.Blame(&outbox.Message{Row: outbox.Row{ID: id}}, SessionEnd{Worked: true})
	}
	if len(l.found) > mostSuspects {
		t.Errorf("%d are held", len(l.found))
	}
}

func TestNobodyIsChargedWhileNoHandlerAnswers(t *testing.T) {
	m := &outbox.Message{Row: outbox.Row{ID: 1}}
	s := NewSuspects()
	end := func(answered, wantCulprit bool) {
		t.Helper()
		if answered {
			s.HandlerWorked()
		}
		if _, culprit := s.Blame(m, SessionEnd{Alone: s.Of(m).MustBeAlone(), Answered: answered}); culprit != wantCulprit {
			t.Fatalf("culprit: %v, %+v", culprit, s)
		}
	}
	for range 10 {
		end(false, false)
	}
	end(true, false) // the second one alone
	end(false, true)
	for range 10 {
		end(false, false) // nobody answered since
	}
	end(true, true)
	s.Clear(m)
	for range EndsTogether + EndsAlone - 1 {
		end(true, false)
	}
	end(true, true)
}
