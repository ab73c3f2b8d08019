package doctor

import (
	"encoding/json"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// facts are the results of the questions. Each question has one value, and an error if it got no answer.
type facts struct {
	database databaseFacts
	broker   *brokerFacts // nil: not checked
}

// answer is the answer to one question.
type answer[T any] struct {
	value T
	err   error
}

type databaseFacts struct {
	unreachable error // if set, nothing else is known
	address     string
	encryption  encryption
	// pooler says how a pooler was recognised; "": there is none.
	pooler string
	// readOnly is default_transaction_read_only in a session that does not set it.
	readOnly answer[string]
	// clock is how far Postgres' clock is ahead of ours; 0: not more than the round trip.
	clock answer[time.Duration]
	// replication is why no replication connection could be opened; nil: it could. Not checked with Poll.
	replication error

	server       answer[serverFacts]
	role         answer[roleFacts]
	tables       answer[tablesFacts]
	version      answer[migrations.State]
	apps         []answer[appFacts] // one for each of AppRoles
	grants       answer[[]grantFacts]
	textual      answer[int]
	adopted      answer[[]adopt.Adopted]
	publication  answer[publicationFacts]
	slots        answer[slotsFacts]
	transactions answer[transactionFacts]
	dead         answer[deadFacts]
	times        answer[timesFacts]
	ids          answer[idFacts]
	history      answer[historyFacts]
	sample       answer[sample]
	// identity is why the server rejects the deletes or updates of the relay; nil: it does not.
	identity *problem.Problem
}

type serverFacts struct {
	VersionNumber int    `json:"version_number"`
	Version       string `json:"version"`
	InRecovery    bool   `json:"in_recovery"`
	Database      string `json:"database"`
	BackendPID    int64  `json:"backend_pid"`
	// Roles are the existing roles of managed services.
	Roles    []string           `json:"roles"`
	Settings map[string]setting `json:"settings"`
	// Walsenders is how many walsenders are in use.
	Walsenders int `json:"walsenders"`
}

func (s serverFacts) major() int { return s.VersionNumber / 10000 }

// setting is a row of pg_settings.
type setting struct {
	Value string `json:"value"`
	Unit  string `json:"unit"`
}

type roleFacts struct {
	Name        string `json:"name"`
	Superuser   bool   `json:"superuser"`
	Replication bool   `json:"replication"`
	// RDS: the role is a member of rds_replication.
	RDS bool `json:"rds"`
	// SeesOthers: the role may see the activity of other roles.
	SeesOthers bool `json:"sees_others"`
	// Creates: the role may create publications in this database.
	Creates bool `json:"creates"`
	// Connections is the role's CONNECTION LIMIT; negative: none.
	Connections int `json:"connections"`
	// Timeouts are those of a new session of the role, in milliseconds; 0: none.
	Timeouts map[string]int64 `json:"timeouts"`
	// ReadOnly is the role's default_transaction_read_only, if an administrator examines it; nil: it has none.
	ReadOnly *bool `json:"read_only"`
	// Login, Connect and Expired: it may log in, connect to the database, and its password is no longer valid.
	Login   bool `json:"login"`
	Connect bool `json:"connect"`
	Expired bool `json:"expired"`
}

func (r roleFacts) timeout(name string) time.Duration {
	return time.Duration(r.Timeouts[name]) * time.Millisecond
}

func (r roleFacts) replicates() bool { return r.Superuser || r.Replication || r.RDS }

type tablesFacts struct {
	SchemaExists bool                  `json:"schema_exists"`
	SchemaUsage  bool                  `json:"schema_usage"`
	Tables       map[string]tableFacts `json:"tables"` // by name; only existing ones
	Leaves       []leafFacts           `json:"leaves"` // of partitioned tables
	// Others have the names of our tables but are of another kind. The value is the kind as ALTER writes it.
	Others map[string]string `json:"others"`
	// Outboxes are up to five outboxes, in all schemas.
	Outboxes []outbox.Table `json:"outboxes"`
	// Views are the tables that these views read, by the name of the view.
	Views map[string][]viewedFacts `json:"views"`
	// Sequence is the sequence of the column id; empty: there is none.
	Sequence        outbox.Table `json:"sequence"`
	SequenceGranted bool         `json:"sequence_granted"`
	Increment       int64        `json:"increment"` // of the sequence
	Cache           int64        `json:"cache"`     // ids that each session takes at once
}

type tableFacts struct {
	Kind        string        `json:"kind"`        // relkind: r table, p partitioned
	Childless   bool          `json:"childless"`   // partitioned, without a partition
	Persistence string        `json:"persistence"` // relpersistence: p permanent, u unlogged, t temporary
	Options     []string      `json:"options"`     // such as "fillfactor=100"
	Owner       string        `json:"owner"`
	Owned       bool          `json:"owned"` // by the relay's role, or a role that it is a member of
	Columns     []columnFacts `json:"columns"`
	Privileges  []string      `json:"privileges"` // of the relay's role
	// Hidden: row-level security applies to the relay's role.
	Hidden bool `json:"hidden"`
	// Secured: row-level security is on, and no policy allows INSERT.
	Secured    bool             `json:"secured"`
	Indexes    []indexFacts     `json:"indexes"`
	Triggers   []triggerFacts   `json:"triggers"` // enabled triggers
	Rules      []string         `json:"rules"`    // rules that rewrite statements
	References []referenceFacts `json:"references"`
	// Constraints can reject a row.
	Constraints []constraintFacts `json:"constraints"`
}

// constraintFacts describe a constraint, or a unique index without one.
type constraintFacts struct {
	Name    string       `json:"name"`
	Index   outbox.Table `json:"index"`  // empty: it is a constraint
	Unique  bool         `json:"unique"` // or EXCLUDE
	Columns []string     `json:"columns"`
}

// viewedFacts describe a table that a view reads.
type viewedFacts struct {
	Schema  string   `json:"schema"`
	Name    string   `json:"name"`
	Columns []string `json:"columns"`
}

// leafFacts describe a partition that stores rows.
type leafFacts struct {
	Root        string           `json:"root"` // the partitioned table
	Schema      string           `json:"schema"`
	Name        string           `json:"name"`
	Persistence string           `json:"persistence"`
	Triggers    []triggerFacts   `json:"triggers"` // its own
	References  []referenceFacts `json:"references"`
	// Constraints are its own.
	Constraints []constraintFacts `json:"constraints"`
}

type columnFacts struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	NotNull bool   `json:"not_null"`
	// Filled: the column has a default or is generated.
	Filled    bool `json:"filled"`
	Generated bool `json:"generated"`
	// Default is the default expression; "": none, or it is generated.
	Default string `json:"default"`
}

type indexFacts struct {
	Index     outbox.Table `json:"index"`
	Columns   []string     `json:"columns"` // "" for an expression
	Predicate string       `json:"predicate"`
	Unique    bool         `json:"unique"`
	Primary   bool         `json:"primary"`
	Valid     bool         `json:"valid"` // and ready
}

type triggerFacts struct {
	Name     string `json:"name"`
	Function string `json:"function"`
	Type     int    `json:"type"` // tgtype of pg_trigger
	// Returns are the words after RETURN in the source of the function, in lower case.
	Returns  []string `json:"returns"`
	Language string   `json:"language"`
	// Always: it has neither WHEN nor OF.
	Always bool `json:"always"`
}

// The bits of tgtype.
const (
	triggerRow, triggerBefore                   = 1, 2
	triggerInsert, triggerDelete, triggerUpdate = 4, 8, 16
)

// referenceFacts describes a foreign key to the table.
type referenceFacts struct {
	Table  outbox.Table `json:"table"`
	Name   string       `json:"name"`
	Action string       `json:"action"` // confdeltype: a and r reject the change; c, n and d change the other table
}

func (t tableFacts) partitioned() bool { return t.Kind == "p" }

// appFacts describe the role of an application.
type appFacts struct {
	Name    string   `json:"-"`
	Exists  bool     `json:"exists"`
	Login   bool     `json:"login"`
	Connect bool     `json:"connect"`
	Usage   bool     `json:"usage"`
	Columns []string `json:"columns"` // columns with the INSERT privilege
	More    []string `json:"more"`    // other privileges on the table
	// Reads are the columns that it may SELECT. ORMs need id for RETURNING id, and Sequence for nextval.
	Reads    []string `json:"reads"`
	Sequence bool     `json:"sequence"`
	// Defaults are the sequences of default values that it may not use.
	Defaults []sequenceFacts `json:"defaults"`
	Enqueue  bool            `json:"enqueue"` // it may call <table>_enqueue, which needs no INSERT
	Cancel   bool            `json:"cancel"`  // it may call <table>_cancel
	Owner    bool            `json:"owner"`   // or superuser
	// Rejected: row-level security rejects every row.
	Rejected bool `json:"rejected"`
}

type sequenceFacts struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
	Same   bool   `json:"same"` // its owner is that of the outbox
}

func (s sequenceFacts) table() outbox.Table { return outbox.Table{Schema: s.Schema, Name: s.Name} }

// grantFacts are what a role may do with the outbox, by a grant to it.
type grantFacts struct {
	Role string `json:"role"` // "": PUBLIC
	// Inherited is the predefined role that gives it; "": a grant on the table or its columns.
	Inherited  string   `json:"inherited"`
	Privileges []string `json:"privileges"`
	Apps       []string `json:"apps"`    // roles of AppRoles that have it by this
	Trusted    bool     `json:"trusted"` // a relay's role or an operator's
	Members    []string `json:"members"` // up to five
}

type publicationFacts struct {
	Exists     bool   `json:"exists"`
	Owner      string `json:"owner"`
	Insert     bool   `json:"insert"`
	Update     bool   `json:"update"`
	Delete     bool   `json:"delete"`
	Truncate   bool   `json:"truncate"`
	ViaRoot    bool   `json:"via_root"`
	AllTables  bool   `json:"all_tables"`
	HasTable   bool   `json:"has_table"`
	Filter     string `json:"filter"`  // a row filter's expression
	Columns    string `json:"columns"` // the column list
	Others     int    `json:"others"`  // other tables in it, counted up to 1000
	ColumnList bool   `json:"column_list"`
	// Outboxes are up to five other outboxes in it.
	Outboxes []outbox.Table `json:"outboxes"`
	// NoTable: the outbox does not exist.
	NoTable bool `json:"no_table"`
}

func (p publicationFacts) state() provision.Publication {
	return provision.Publication{
		Exists: p.Exists, Insert: p.Insert, ViaRoot: p.ViaRoot, HasTable: p.HasTable,
		RowFilter: p.Filter, ColumnList: p.ColumnList, Outboxes: p.Outboxes, NoTable: p.NoTable,
	}
}

type slotsFacts struct {
	Slots []slot.Slot // all slots of the server
	// Standbys are the physical slots that a failover slot waits for and that are missing or not in use.
	Standbys []string
}

type transactionFacts struct {
	// Commits are the sessions whose COMMIT waits for a synchronous standby, one of Standbys.
	Commits  int           `json:"commits"`
	Standbys string        `json:"standbys"`
	Sessions []transaction `json:"sessions"` // the oldest first
	Prepared []transaction `json:"prepared"`
	// Writers have a transaction id, in any database: the creation of a slot waits for them. Every role can see them
	// through their locks, but not since when they are open.
	Writers []transaction `json:"writers"`
	// Feedback are walsenders that hold back VACUUM for a standby (hot_standby_feedback).
	Feedback []transaction `json:"feedback"`
}

type transaction struct {
	PID      int     `json:"pid"`
	GID      string  `json:"gid"`
	User     string  `json:"user"`
	Program  string  `json:"program"`
	Database string  `json:"database"`
	State    string  `json:"state"`
	Age      float64 `json:"age"`     // seconds; 0: unknown
	XIDAge   int64   `json:"xid_age"` // in transactions
	// Here: in this database, so its dead rows stay.
	Here bool `json:"here"`
}

func (t transaction) age() time.Duration { return time.Duration(t.Age * float64(time.Second)) }

// timesFacts count rows among the oldest and newest: created in the future, expired, or for a newer relay.
type timesFacts struct {
	Rows    int64  `json:"rows"`
	Latest  string `json:"latest"`
	Expired int64  `json:"expired"`
	// Newer counts rows with a schema_version that this relay does not know; NewestVersion is the highest.
	Newer         int64 `json:"newer"`
	NewestVersion int   `json:"newest_version"`
}

// idFacts describe the sequence of the column id, if it ascends.
type idFacts struct {
	Exhausted bool        `json:"exhausted"` // it is at its last value
	Behind    bool        `json:"behind"`    // a row has its next value, or a higher one
	Narrow    bool        `json:"narrow"`    // its last value is less than that of a bigint
	Next      json.Number `json:"next"`
	MaxID     json.Number `json:"max_id"`
}

type deadFacts struct {
	Dead  int64   `json:"dead"`
	Live  int64   `json:"live"`
	Pages int64   `json:"pages"`
	Since float64 `json:"since"` // seconds since the last VACUUM; negative: never
}
