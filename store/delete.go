package store

import (
	"cmp"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The deletes of the hot path. Ids of a batch are usually close together; then one index scan over them costs Postgres
// a third less than a join. The message ids, 16 bytes each, form one value, indexed by id minus the first id.
const (
	dropNearSQL = `
WITH deleted AS (` + deleteNear + `)` + deletedNear
	// moveNearSQL is the same with a history.
	moveNearSQL = `
WITH deleted AS (` + deleteNear + `, {kept_of_row}), kept AS (` + toHistory + `)` + deletedNear

	deleteNear = `
  DELETE FROM {outbox} r
  WHERE r.id = ANY ($1::bigint[]) AND pg_catalog.uuid_send(r.message_id)
      = substring($2::bytea FROM ((r.id - $3::bigint) * 16 + 1)::integer FOR 16)
  RETURNING r.id AS deleted_id`
	deletedNear = `
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(deleted_id), '{}'), ` + isAwaited + ` FROM deleted`
)

// nearFactor is how much longer than the batch the list of message ids may be.
const nearFactor = 8

// compactIDs returns the message ids of a batch that is sorted by id, each at the place of its id. It returns nil if
// the ids are too far apart, or one occurs twice.
func compactIDs(part []outbox.Settlement) (messageIDs []byte) {
	first, last := part[0].Message.ID, part[len(part)-1].Message.ID
	if uint64(last-first) >= uint64(nearFactor*len(part)) {
		return nil
	}
	messageIDs = make([]byte, 16*(last-first+1))
	for i, settlement := range part {
		if i > 0 && settlement.Message.ID == part[i-1].Message.ID {
			return nil
		}
		copy(messageIDs[16*(settlement.Message.ID-first):], settlement.Message.MessageID[:])
	}
	return messageIDs
}

// positions turns the ids of deleted rows into their places in the batch, from 1.
func positions(ids []int64, part []outbox.Settlement) {
	for i, id := range ids {
		nth, _ := slices.BinarySearchFunc(part, id, func(one outbox.Settlement, id int64) int {
			return cmp.Compare(one.Message.ID, id)
		})
		ids[i] = int64(nth + 1)
	}
}
