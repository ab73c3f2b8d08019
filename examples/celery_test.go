package examples_test

import (
	"context"
	"os/exec"
	"strings"

	"github.com/cdc-relay/cdc-relay/test/await"
)

const (
	celeryDrain = "cdc-relay drain --publisher exec -- "
	celery      = "/usr/bin/python3 celery_redis.py"
)

// handCelery sends Celery tasks from the outbox to Redis, where a worker runs them.
func (e *shop) handCelery() {
	server := startRedis(e)
	e.env = append(e.env, "CELERY_BROKER_URL=redis://127.0.0.1:"+server.port+"/0",
		"PYTHONPATH=../../clients/python:.", "PYTHONDONTWRITEBYTECODE=1", "C_FORCE_ROOT=1")
	e.priorities(server)
	e.tasks(server)
	e.redisIsDown(server)
	e.noReply(server)
	e.celeryAnswers(server)
}

// place places orders, by Python code that calls place_order.
func (e *shop) place(code string) {
	e.t.Helper()
	e.do("/usr/bin/python3 -c '\nfrom celery_shop import *\n" + code + "'")
}

// worker runs a Celery worker until all orders have a parcel. It wants these parcels, in an order.
func (e *shop) worker(args, order, want string) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	defer cancel()
	worker := exec.CommandContext(ctx, "/usr/bin/python3", append(strings.Fields("-m celery -A celery_shop worker -P solo -l INFO"), strings.Fields(args)...)...)
	var log strings.Builder
	worker.Dir, worker.Env, worker.Stdout, worker.Stderr = e.folder, e.env, &log, &log
	must(e.t, worker.Start())
	await.Until(e.t, "the tasks have run", func() bool {
		var parcels, orders int
		err := e.owner.QueryRow(e.t.Context(), "SELECT (SELECT count(*) FROM parcels), (SELECT count(*) FROM orders)").Scan(&parcels, &orders)
		return err == nil && parcels >= orders
	})
	cancel()
	_ = worker.Wait()
	e.want("SELECT string_agg(order_id::text, ',' ORDER BY "+order+") FROM parcels", want)
	if e.t.Failed() {
		e.t.Log(log.String())
	}
	e.exec("TRUNCATE parcels, orders")
}

// priorities: Redis has a list for each step of priorities, and 0 is the most urgent one.
func (e *shop) priorities(server *redis) {
	e.place("for n, priority in enumerate([9, 5, 0]): place_order(n, priority=priority)")
	e.do(celeryDrain + celery)
	for _, key := range []string{"celery", `$'celery\x06\x163'`, `$'celery\x06\x169'`} {
		if n := server.cli("LLEN " + key); n != "1\n" {
			e.t.Errorf("%s has %s messages, want 1", key, n)
		}
	}
	e.worker("", "ctid", "2,1,0")
}

// tasks sends tasks in each form, and some through exchanges.
func (e *shop) tasks(server *redis) {
	e.place(`
from kombu import Exchange, Queue
app.conf.task_queues = [Queue("celery"), Queue("mail"), Queue("events", Exchange("shop", type="topic"), "orders.#")]
place_order(1)
place_order(2, serializer="pickle")
place_order(3, compression="zlib")
place_order(4, countdown=3600)
place_order(5, queue="mail")
place_order(6, headers={"tenant": "acme"}, expires=3600)
with app.connection_for_write() as connection: app.amqp.queues["events"](connection.default_channel).declare()
place_order(7, exchange="shop", routing_key="orders.created")
`)
	e.exec("UPDATE outbox SET available_at = now() WHERE available_at > now()")
	e.do(celeryDrain + celery + " --topic shop celery mail")
	e.want("SELECT count(*)::text FROM outbox", "0")
	if n := server.cli("LLEN events"); n != "1\n" {
		e.t.Errorf("the queue of the topic exchange has %s messages, want 1", n)
	}
	e.worker("-Q celery,mail,events", "order_id", "1,2,3,4,5,6,7")
}

// redisIsDown: no attempt is charged, and the task runs when Redis is back.
func (e *shop) redisIsDown(server *redis) {
	server.stop()
	e.place("place_order(1)")
	if out, err := e.command(celeryDrain + celery); err == nil || !strings.Contains(out, "refused") {
		e.t.Errorf("drain without Redis: %v\n%s", err, out)
	}
	e.want("SELECT attempts::text FROM outbox", "0")
	server.start("--save", "")
	e.do(celeryDrain + celery)
	e.worker("", "order_id", "1")
}

// noReply kills Redis after it has got the task and before it answers.
func (e *shop) noReply(server *redis) {
	server.cli("CLIENT PAUSE 100000000 WRITE")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		e.answers(celery, "unknown", "", line("celery", ""))
	}()
	await.Until(e.t, "Redis has got the task", func() bool {
		return strings.Contains(server.cli("INFO clients"), "blocked_clients:1")
	})
	server.stop()
	<-answered
	server.start("--save", "")
}

// celeryAnswers checks single answers of the handler.
func (e *shop) celeryAnswers(server *redis) {
	e.answers(celery, "confirmed", "", line("celery", ""))
	e.answers(celery+" mail", "rejected", "no queue celery", line("celery", ""))
	e.answers(celery, "rejected", "no queue is bound", line("celery", `,"exchange":"shop"`))
	e.answers(celery+" --fanout shop", "confirmed", "", line("celery", `,"exchange":"shop"`))
	e.answers(celery, "impossible", "", line("celery", `,"headers":{"deep":`+strings.Repeat("[", 5_000)+strings.Repeat("]", 5_000)+`}`))
	e.answers(celery, "impossible", "", line("celery", `,"headers":{`))
	e.answers(celery, "confirmed", "", line("second", `,"possible_duplicate":true`))
	stored := server.cli("LINDEX second 0")
	for _, part := range []string{`"x-possible-duplicate": true`, `"message_id": "5f0c`, `"body": "W1sxXSx7fSx7fV0="`, `"content-type": "application/json"`} {
		if !strings.Contains(stored, part) {
			e.t.Errorf("Redis has %s, want %s in it", stored, part)
		}
	}
	server.cli("SET text 1")
	e.answers(celery, "rejected", "WRONGTYPE", line("text", ""))
	for _, f := range server.faults() {
		f.begin()
		e.answers(celery, "not_sent", f.says, line("celery", ""))
		f.end()
	}
	server.cli("ACL SETUSER app on '>s3cr3t' '~celery*' '&*' +@all")
	limited := "CELERY_BROKER_URL=redis://app:s3cr3t@127.0.0.1:" + server.port + " " + celery
	e.answers(limited, "confirmed", "", line("celery", ""))
	e.answers(limited, "not_sent", "no permissions", line("mail", ""))
	wrong := "CELERY_BROKER_URL=redis://:wrong@127.0.0.1:" + server.port + " " + celery
	server.cli("CONFIG SET requirepass s3cr3t")
	e.answers(wrong, "not_sent", "invalid username-password pair", line("celery", ""))
	e.answers(strings.Replace(wrong, "wrong", "s3cr3t", 1), "confirmed", "", line("celery", ""))
	if out, err := e.command("CELERY_BROKER_URL=rediscluster://127.0.0.1 " + celery); err == nil || !strings.Contains(out, "No such transport") {
		e.t.Errorf("with a wrong URL: %v\n%s", err, out)
	}
	e.clusterAndSentinel()
}

// clusterAndSentinel: kombu finds the master by Sentinel. It has no transport for Redis Cluster.
func (e *shop) clusterAndSentinel() {
	master := startRedis(e)
	sentinel := startSentinel(e, master)
	with := "CELERY_BROKER_URL=sentinel://127.0.0.1:" + sentinel.port + ` CELERY_BROKER_TRANSPORT_OPTIONS='{"master_name": "%s"}' ` + celery
	e.answers(strings.Replace(with, "%s", "shop", 1), "confirmed", "", line("celery", ""))
	if n := master.cli("LLEN celery"); n != "1\n" {
		e.t.Errorf("the master has %s messages, want 1", n)
	}
	e.answers(strings.Replace(with, "%s", "other", 1), "not_sent", "No master found", line("celery", ""))
	cluster := startRedis(e, "--cluster-enabled", "yes")
	e.answers("CELERY_BROKER_URL=redis://127.0.0.1:"+cluster.port+" "+celery, "not_sent", "not served", line("celery", ""))
}
