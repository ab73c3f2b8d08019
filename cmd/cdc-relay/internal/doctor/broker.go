package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// brokerFacts are what AMQP and the management API report.
type brokerFacts struct {
	// unreachable is why no node takes a connection; nil: at least one does, and the other facts are from the first.
	unreachable *amqpdial.DialError
	nodes       []nodeFacts

	vhost, user, version string

	alarm string        // why the broker accepts no messages; "": there is no alarm
	asked []destination // those that were checked
	left  int           // how many were not
	// exchanges by name, without the default exchange. 404: there is none. After any other error, it is unknown.
	exchanges map[string]error      // nil: it exists
	queues    map[string]error      // that rows name through the default exchange, with the same errors
	writes    map[destination]error // the rejections of test messages
	broken    error                 // the error that ended the check early

	management managementFacts
}

// gatherBroker collects the facts for these destinations.
func (o Options) gatherBroker(ctx context.Context, wanted []destination) *brokerFacts {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	f := &brokerFacts{exchanges: map[string]error{}, queues: map[string]error{}, writes: map[destination]error{}}
	f.asked = wanted[:min(len(wanted), mostDestinations)]
	f.left = len(wanted) - len(f.asked)
	nodes, err := o.RabbitMQ.Nodes()
	if err != nil {
		f.unreachable = o.RabbitMQ.Unread(err)
		return f
	}
	all := o.dialNodes(ctx, nodes)
	used := all[0]
	for _, one := range slices.Backward(all) {
		if one.unreachable == nil {
			defer one.probe.close()
			used = one
		}
	}
	f.nodes, f.vhost, f.user, f.version = all, used.URI.Vhost, used.URI.Username, used.version
	if f.unreachable = used.unreachable; f.unreachable != nil {
		return f
	}
	f.askExistence(used.probe, o)
	if !o.NoProbe {
		f.askWrites(ctx, used.probe, o)
	}
	f.management = o.gatherManagement(ctx, used.Node, f)
	for name, q := range f.management.queues {
		if limit, _ := f.management.rules(q).limit("max-length"); limit != "" && f.broken == nil && f.alarm == "" {
			if n, err := used.probe.ready(name); err == nil {
				q.Ready = float64(n)
				f.management.queues[name] = q
			}
		}
	}
	return f
}

// nodeFacts are what one node of RabbitMQ answers to a login.
type nodeFacts struct {
	amqpdial.Node
	version     string
	unreachable *amqpdial.DialError // nil: it takes connections
	probe       *amqpProbe          // its connection, which gatherBroker closes
	encryption  encryption
}

// dialNodes connects to all nodes at the same time, because a silent one takes half of the time limit.
func (o Options) dialNodes(ctx context.Context, nodes []amqpdial.Node) []nodeFacts {
	all := make([]nodeFacts, len(nodes))
	var dialling sync.WaitGroup
	for i, node := range nodes {
		dialling.Go(func() {
			all[i].Node = node
			conn, socket, err := o.dialBroker(ctx, node)
			if err != nil {
				all[i].unreachable = o.RabbitMQ.Explain(node, err)
				return
			}
			all[i].version, _ = conn.Properties["version"].(string)
			all[i].encryption = encryptionOf(socket, false)
			if node.URI.Scheme == "amqps" {
				state := conn.ConnectionState()
				all[i].encryption.tls, all[i].encryption.verified = &state, len(state.VerifiedChains) > 0
			}
			all[i].probe = &amqpProbe{
				conn: conn, socket: socket, blocked: conn.NotifyBlocked(make(chan amqp091.Blocking, 8)),
			}
		})
	}
	dialling.Wait()
	return all
}

// dialBroker connects. It cuts the connection as soon as ctx is done.
func (o Options) dialBroker(ctx context.Context, node amqpdial.Node) (*amqp091.Connection, net.Conn, error) {
	var socket net.Conn
	properties := amqp091.NewConnectionProperties()
	properties["product"] = "cdc-relay"
	name := "cdc-relay check"
	if host, err := os.Hostname(); err == nil {
		name = fmt.Sprintf("cdc-relay check %s/%d", host, os.Getpid())
	}
	properties.SetClientConnectionName(name)
	config := amqp091.Config{
		Heartbeat: 10 * time.Second, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := amqpdial.DialHost(ctx, network, address, o.timeout/2)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			socket = conn
			// The library removes the deadline after the handshake.
			return conn, conn.SetDeadline(time.Now().Add(o.timeout / 2))
		},
	}
	conn, err := node.Dial(config)
	return conn, socket, err
}

// written returns the destinations to which the user must be able to publish. With the default exchange, the key does
// not matter, and a direct reply would be delivered.
func (o Options) written(asked []destination) (all []destination) {
	for _, d := range asked {
		if d.exchange == "" {
			d.routingKey = ""
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		all = append(all, destination{exchange: o.Exchange})
	}
	if o.EventsExchange != "" {
		all = append(all, destination{exchange: o.EventsExchange})
	}
	return all
}

// exchangesOf returns the exchanges of the rows, of --exchange and of --events-exchange, without the default exchange.
func (o Options) exchangesOf(wanted []destination) (names []string) {
	for _, d := range append([]destination{{exchange: o.Exchange}, {exchange: o.EventsExchange}}, wanted...) {
		if d.exchange != "" && !slices.Contains(names, d.exchange) {
			names = append(names, d.exchange)
		}
	}
	return names
}

// askExistence uses passive declares: they create nothing, and need no permission, except in some versions of RabbitMQ.
func (f *brokerFacts) askExistence(p *amqpProbe, o Options) {
	for _, name := range o.exchangesOf(f.asked) {
		err := p.exchange(name)
		if f.broken = p.fatal(err); f.broken != nil {
			return
		}
		f.exchanges[name] = err
	}
	for _, d := range f.asked {
		if d.exchange != "" || d.reply() {
			continue
		}
		err := p.queue(d.routingKey)
		if f.broken = p.fatal(err); f.broken != nil {
			return
		}
		f.queues[d.routingKey] = err
	}
}

// askWrites publishes in a transaction that is rolled back; see amqpProbe.take.
func (f *brokerFacts) askWrites(ctx context.Context, p *amqpProbe, o Options) {
	for _, d := range o.written(f.asked) {
		if f.broken != nil {
			return
		}
		if _, done := f.writes[d]; done || isNotFound(f.exchanges[d.exchange]) {
			continue
		}
		err := p.take(ctx, d)
		if errors.Is(err, errBlocked) {
			f.alarm = err.Error()
			return
		}
		if f.broken = p.fatal(err); f.broken != nil {
			return
		}
		f.wrote(d, err)
	}
}

// wrote records the answer to a test message. It also says whether the exchange exists, if the look-up was rejected.
func (f *brokerFacts) wrote(d destination, err error) {
	f.writes[d] = err
	if isNotFound(err) {
		f.exchanges[d.exchange] = err
	}
}

type brokerJudge struct {
	o        Options
	f        brokerFacts
	database databaseFacts
}

// judgeBroker turns the facts of the broker into findings.
func judgeBroker(o Options, f facts) (found []Finding) {
	if f.broker == nil {
		return nil
	}
	j, c := &brokerJudge{o: o, f: *f.broker, database: f.database}, chart{RabbitMQ, "", &found}
	j.judgeNodes(c)
	if j.f.unreachable != nil {
		return found
	}
	c.ok("login", "user %q", j.f.user)
	c.ok("vhost", "virtual host %q", j.f.vhost)
	j.judgeAlarm(c)
	if err := j.f.broken; err != nil {
		hint := cmp.Or(amqpdial.StateHint(err.Error(), j.f.user, j.f.vhost),
			"# run check again; if it still fails, see RabbitMQ's log")
		c.wrong("connection", hintFix(hint), "the connection broke during the check: %s", err)
	}
	j.judgeExchanges(c)
	j.judgeWrites(c)
	j.judgeManagement(c)
	j.judgeRouting(c.in(Routing))
	return found
}

// judgeNodes reports each node. One that takes no connection is a problem only if there is no other.
func (j *brokerJudge) judgeNodes(c chart) {
	if down := j.f.unreachable; down != nil && len(j.f.nodes) == 0 {
		c.wrong(down.Part, hintFix(down.Hint()), "%s", down)
	}
	for _, node := range j.f.nodes {
		one := c
		if len(j.f.nodes) > 1 {
			one = c.about(node.Address())
		}
		switch down := node.unreachable; {
		case down == nil:
			one.ok("reachable", "RabbitMQ %s at %s accepts user %q", node.version, node.Address(), node.URI.Username)
			node.encryption.judge(one, "RabbitMQ at "+node.Address(),
				remark("# in --amqp-url (CDC_RELAY_AMQP_URL): amqps://…:5671; "+
					"docs/configuration.md, \"AMQP URL\", explains certificates"), time.Now())
		case j.f.unreachable != nil:
			one.wrong(down.Part, hintFix(down.Hint()), "%s", down)
		default:
			one.warn(down.Part, hintFix(down.Hint()), "%s. The relay uses the other nodes", down)
		}
	}
}

func (j *brokerJudge) judgeAlarm(c chart) {
	fix := lines(command("rabbitmq-diagnostics alarms"),
		remark("# memory: free some, or rabbitmqctl set_vm_memory_high_watermark 0.6; "+
			"disk: free some, or rabbitmqctl set_disk_free_limit 1GB"))
	switch {
	case j.f.alarm != "":
		c.wrong("alarms", fix, "%s. The relay waits, and loses nothing", j.f.alarm)
	case j.f.management.alarms != "":
		c.wrong("alarms", fix, "%s: publishers are blocked. The relay waits, and loses nothing", j.f.management.alarms)
	case j.o.NoProbe && j.f.management.err != nil:
		c.ok("alarms", "not checked (--no-probe)")
	default:
		c.ok("alarms", "none: RabbitMQ accepts messages")
	}
}

func (j *brokerJudge) judgeExchanges(c chart) {
	namedBy := map[string]string{j.o.EventsExchange: " (--events-exchange)"}
	namedBy[j.o.Exchange] = " (--exchange)"
	for _, name := range j.o.exchangesOf(j.f.asked) {
		one := c.about(name)
		err, asked := j.f.exchanges[name]
		switch {
		case !asked: // the connection broke before this check
		case isNotFound(err):
			create := j.curl("PUT", "exchanges", name, `{"type": "topic", "durable": true}`)
			one.wrong("exchange", create.noted("or the type that its consumers expect"),
				"exchange %q does not exist in virtual host %q%s", name, j.f.vhost, namedBy[name])
		case err != nil:
			one.warn("exchange", lookUpFix(err), "%s. The relay publishes to it nevertheless",
				j.unknown(fmt.Sprintf("exchange %q", name), err))
		default:
			one.ok("exchange", "%q exists", name)
		}
	}
	if j.o.Exchange == "" {
		c.ok("exchange", "rows that name none go to the default exchange")
	}
}

// unknown says that a look-up was rejected, which is no verdict on messages.
func (j *brokerJudge) unknown(what string, err error) string {
	return fmt.Sprintf("whether %s exists is unknown: RabbitMQ %s rejects the look-up: %s",
		what, j.f.version, reasonOf(err))
}

// lookUpFix: RabbitMQ 4.2.6 and 4.3.0 ask for configure at a passive declare.
func lookUpFix(err error) steps {
	if codeOf(err) == amqp091.AccessRefused {
		return remark("# upgrade RabbitMQ to 4.2.7 or 4.3.1, or grant the user configure on it: " +
			"4.2.6 and 4.3.0 ask for that at each look-up")
	}
	return remark("# see RabbitMQ's log")
}

// codeOf returns the code of an exception; 0: it is another error, or none.
func codeOf(err error) int {
	var exception *amqp091.Error
	if errors.As(err, &exception) {
		return exception.Code
	}
	return 0
}

func isNotFound(err error) bool { return codeOf(err) == amqp091.NotFound }

// isDown reports whether a queue exists, and its node is down.
func isDown(err error) bool {
	var exception *amqp091.Error
	return isNotFound(err) && errors.As(err, &exception) && !amqpdial.NoQueue(exception)
}

// judgeWrites reports how the broker answered the test messages.
func (j *brokerJudge) judgeWrites(c chart) {
	if j.o.NoProbe {
		c.ok("write", "not checked (--no-probe)")
		return
	}
	permitted, denied := map[string]bool{}, map[string]bool{} // by exchange
	for _, d := range j.o.written(j.f.asked) {
		err, asked := j.f.writes[d]
		switch {
		case !asked || isNotFound(err): // reported already
		case err == nil:
			permitted[d.exchange] = true
		case !denied[d.exchange]:
			denied[d.exchange] = true
			key := ""
			if d.exchange != "" {
				key = fmt.Sprintf(" with routing key %q", d.routingKey)
			}
			c.about(d.exchange).wrong("write", j.permitFix(d.exchange, err), "user %q may not publish to %s%s: %s",
				j.f.user, called(d.exchange), key, reasonOf(err))
		}
	}
	for _, exchange := range sortedKeys(permitted) {
		if !denied[exchange] {
			c.about(exchange).ok("write", "user %q may publish to %s", j.f.user, called(exchange))
		}
	}
}

func called(exchange string) string {
	if exchange == "" {
		return "the default exchange"
	}
	return fmt.Sprintf("exchange %q", exchange)
}

// permitFix gives the user only the exchanges that the settings name: any application can insert a row with the name of
// any exchange. A limit to some routing keys is never lifted for the key of a row.
func (j *brokerJudge) permitFix(exchange string, err error) steps {
	reason := reasonOf(err)
	vhost, user := shell(j.f.vhost), shell(j.f.user)
	switch {
	case strings.Contains(reason, "internal exchange '"):
		return remark("# publish to an exchange that is bound to it: an internal one rejects messages from clients")
	case strings.Contains(reason, "access to topic '"):
		return remark("# if applications may use this routing key, change the pattern: "+
			"rabbitmqctl list_user_topic_permissions -p %s %s%s", vhost, problem.Dashed(j.f.user), user)
	case exchange != j.o.Exchange && exchange != j.o.EventsExchange:
		return remark("# rows name it, and no setting does. "+
			"If applications may use it, add it to the pattern for write: rabbitmqctl list_user_permissions %s%s",
			problem.Dashed(j.f.user), user)
	}
	names := []string{cmp.Or(j.o.Exchange, "amq.default")} // its name in permissions
	if j.o.EventsExchange != "" {
		names = append(names, j.o.EventsExchange)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for i := range names {
		names[i] = regexp.QuoteMeta(names[i])
	}
	pattern := "^(" + strings.Join(names, "|") + ")$"
	return command("rabbitmqctl set_permissions -p %s %s%s '' %s ''",
		vhost, problem.Dashed(j.f.user), user, shell(pattern)).
		noted("configure, write, read: it replaces what the user had. Add the exchanges that rows may name")
}

func reasonOf(err error) string {
	var exception *amqp091.Error
	if errors.As(err, &exception) {
		return exception.Reason
	}
	return err.Error()
}
