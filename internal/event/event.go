// Package event names the events in the log of run, drain and the console, for alerts. docs/events.md explains each
// event; a test compares that table with the code.
package event

// Name is the field "event" of a log line. Names never change, because alerts depend on them.
type Name string

// The process.
const (
	RelayStarted         Name = "relay_started"
	RelayFailed          Name = "relay_failed"
	ConfigWarning        Name = "config_warning"
	SetupChanged         Name = "setup_changed"
	RelayStopping        Name = "relay_stopping"
	RelayStopped         Name = "relay_stopped"
	RelayStuck           Name = "relay_stuck"
	ReportFailing        Name = "report_failing"
	ReportRecovered      Name = "report_recovered"
	MessagesLeftInFlight Name = "messages_left_in_flight"
	DrainDone            Name = "drain_done"
	HTTPListening        Name = "http_listening"
	LivenessFileFailed   Name = "liveness_file_failed"
	SystemdFailed        Name = "systemd_failed"
	SpansLost            Name = "spans_lost"
	TracingIgnored       Name = "tracing_ignored"
	StatsdDown           Name = "statsd_down"
	StatsdUp             Name = "statsd_up"
	ResultIgnored        Name = "result_ignored"
	HookSlow             Name = "hook_slow"
	HookPanicked         Name = "hook_panicked"
	LogLinesDropped      Name = "log_lines_dropped"
	LibraryReported      Name = "library_reported"
	ConsoleStarted       Name = "console_started"
	ConsoleChanged       Name = "console_changed"
	ConsoleLoginFailed   Name = "console_login_failed"
)

// Postgres, the slot and the stream.
const (
	PostgresDown         Name = "postgres_down"
	PostgresConnected    Name = "postgres_connected"
	StreamDown           Name = "stream_down"
	StreamUp             Name = "stream_up"
	Streaming            Name = "streaming"
	StreamCaughtUp       Name = "stream_caught_up"
	StreamLagging        Name = "stream_lagging"
	LeaderStarted        Name = "leader_started"
	StandbyStarted       Name = "standby_started"
	SlotCreated          Name = "slot_created"
	SlotDropped          Name = "slot_dropped"
	SlotTaken            Name = "slot_taken"
	SlotHandedOver       Name = "slot_handed_over"
	OwnerTerminated      Name = "owner_terminated"
	PublicationRecreated Name = "publication_recreated"
	RowUndecodable       Name = "row_undecodable"
)

// The outbox table.
const (
	SweepFailing        Name = "sweep_failing"
	SweepRecovered      Name = "sweep_recovered"
	RetriesHastened     Name = "retries_hastened"
	SettleFailing       Name = "settle_failing"
	SettleRecovered     Name = "settle_recovered"
	CommitWaits         Name = "commit_waits"
	CommitReturned      Name = "commit_returned"
	RowLocked           Name = "row_locked"
	RowUnlocked         Name = "row_unlocked"
	RowSetAside         Name = "row_set_aside"
	PublishingStopped   Name = "publishing_stopped"
	PublishingResumed   Name = "publishing_resumed"
	DeadLettersDeleted  Name = "dead_letters_deleted"
	RetentionFailing    Name = "retention_failing"
	RetentionRecovered  Name = "retention_recovered"
	HistoryDropped      Name = "history_dropped"
	HistoryFailing      Name = "history_failing"
	HistoryRecovered    Name = "history_recovered"
	MessageRejected     Name = "message_rejected"
	MessageDeadLettered Name = "message_dead_lettered"
)

// RabbitMQ, or another publisher.
const (
	HandlerEnded         Name = "handler_ended"
	HandlerAnswerInvalid Name = "handler_answer_invalid"
	BrokerConnected      Name = "broker_connected"
	BrokerDown           Name = "broker_down"
	BrokerLost           Name = "broker_lost"
	BrokerBlocked        Name = "broker_blocked"
	BrokerUnblocked      Name = "broker_unblocked"
	PublisherFailing     Name = "publisher_failing"
	PublisherRecovered   Name = "publisher_recovered"
	MessageUnanswered    Name = "message_unanswered"
	NoticeLost           Name = "notice_lost"
)
