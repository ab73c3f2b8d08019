package limit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// read reads a pgoutput slot from its position until it has seen the given number of inserts.
func read(ctx context.Context, order Order) error {
	config, err := pgconn.ParseConfig(order.Database)
	if err != nil {
		return fmt.Errorf("read the address of the database: %w", err)
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect for replication: %w", err)
	}
	defer closeConn(conn)
	err = pglogrepl.StartReplication(ctx, conn, order.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + order.Slot + "'", "binary 'true'"},
	})
	if err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	var position pglogrepl.LSN
	for seen := 0; seen < order.Messages; {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		data, isData := message.(*pgproto3.CopyData)
		if failure, is := message.(*pgproto3.ErrorResponse); is {
			return fmt.Errorf("read the stream: %w", pgconn.ErrorResponseToPgError(failure))
		}
		if !isData || len(data.Data) == 0 {
			continue
		}
		switch data.Data[0] {
		case pglogrepl.XLogDataByteID:
			wal, err := pglogrepl.ParseXLogData(data.Data[1:])
			if err != nil {
				return err
			}
			if len(wal.WALData) > 0 && wal.WALData[0] == byte(pglogrepl.MessageTypeInsert) {
				seen++
			}
			position = max(position, wal.WALStart)
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			if err := answer(ctx, conn, position); err != nil {
				return err
			}
		}
	}
	return answer(ctx, conn, position)
}

func answer(ctx context.Context, conn *pgconn.PgConn, position pglogrepl.LSN) error {
	err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: position, WALFlushPosition: position, WALApplyPosition: position, ClientTime: time.Now(),
	})
	if err != nil {
		return fmt.Errorf("send a status: %w", err)
	}
	return nil
}

func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
