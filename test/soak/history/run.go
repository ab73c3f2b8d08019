package history

import "time"

// Run is the first line of a history: what a person needs to judge it and to repeat it.
type Run struct {
	Seed int64 `json:"seed"`
	// Command is the command line that repeats the run, with the seed.
	Command string `json:"command,omitempty"`
	// Versions are the versions of the relay, Postgres, RabbitMQ and other programs, by name.
	Versions map[string]string `json:"versions,omitempty"`
	// Subject is the name of the program under test in a comparison of programs.
	Subject string `json:"subject,omitempty"`
	// Started is the wall-clock time at the recorder's zero.
	Started time.Time `json:"started,omitzero"`
	// RecoverWithin is the limit in nanoseconds for the arrival of a message committed after a fault's end. 0:
	// reported, but not judged.
	RecoverWithin time.Duration `json:"recover_within_ns,omitempty"`
}

// earlyTolerance is how much too early a scheduled message may appear to arrive: its due time is on the database's
// clock, its arrival on the recorder's.
const earlyTolerance = 50 * time.Millisecond

// line is one line of a history: the time, and one of the others. Times are nanoseconds since the recorder began.
//
//	{"run":{"seed":7,"command":"cdc-relay-soak --seed 7"}}
//	{"at":1000,"ending":{"id":1,"writer":0,"messages":[{"id":"…","kind":"plain","key":"k1","seq":1}]}}
//	{"at":2000,"ended":{"id":1,"outcome":"committed"}}
//	{"at":3000,"delivered":{"message":"…","queue":"soak.1"}}
//	{"at":4000,"began":{"id":1,"name":"relay-kill","duplicates":2000}}
//	{"at":5000,"healed":1}
//	{"at":6000,"remaining":{"message":"…","dead_letter":true,"attempts":6,"reason":"retries_exhausted"}}
//	{"at":7000,"kept":1}
type line struct {
	At        time.Duration `json:"at,omitempty"`
	Run       *Run          `json:"run,omitempty"`
	Ending    *Transaction  `json:"ending,omitempty"`
	Ended     *ended        `json:"ended,omitempty"`
	Delivered *Delivery     `json:"delivered,omitempty"`
	Began     *Fault        `json:"began,omitempty"`
	Healed    *int          `json:"healed,omitempty"`
	Remaining *Row          `json:"remaining,omitempty"`
	Kept      *int64        `json:"kept,omitempty"`
}

type ended struct {
	ID      int64   `json:"id"`
	Outcome Outcome `json:"outcome"`
}
