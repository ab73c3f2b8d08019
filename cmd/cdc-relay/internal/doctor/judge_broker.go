package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// judgeBroker turns the facts of the broker into findings.
func judgeBroker(o Options, f facts) []Finding {
	if f.broker == nil {
		return nil
	}
	j := &brokerJudge{o: o, f: *f.broker, database: f.database}
	c := &chart{area: RabbitMQ}
	j.judgeNodes(c)
	if j.f.unreachable != nil {
		return c.findings
	}
	c.ok("login", "user %q", j.f.user)
	c.ok("vhost", "virtual host %q", j.f.vhost)
	j.f.encryption.judge(c, "RabbitMQ", remark("# in --amqp-url (CDC_RELAY_AMQP_URL): amqps://…:5671; "+
		"docs/configuration.md, \"AMQP URL\", explains certificates"), time.Now())
	j.judgeAlarm(c)
	if j.f.broken != nil {
		hint := cmp.Or(amqpdial.StateHint(j.f.broken.Error(), j.f.user, j.f.vhost),
			"# run check again; if it still fails, see RabbitMQ's log")
		c.wrong("connection", hintFix(hint),
			"the connection broke during the check: %s", j.f.broken)
	}
	j.judgeExchanges(c)
	j.judgeWrites(c)
	j.judgeManagement(c)
	return slices.Concat(c.findings, j.judgeRouting())
}

type brokerJudge struct {
	o        Options
	f        brokerFacts
	database databaseFacts
}

// judgeNodes reports each node. One that takes no connection is a problem only if there is no other.
func (j *brokerJudge) judgeNodes(c *chart) {
	switch down := j.f.unreachable; {
	case len(j.f.nodes) > 0:
	case down != nil:
		c.wrong(down.Part, hintFix(down.Hint()), "%s", down)
	default:
		c.ok("reachable", "RabbitMQ %s at %s", j.f.version, j.f.address)
	}
	for _, node := range j.f.nodes {
		switch down := node.unreachable; {
		case down == nil:
			c.ok("reachable", "RabbitMQ %s at %s accepts user %q", node.version, node.Address(), node.URI.Username).
				about(node.Address())
		case j.f.unreachable != nil:
			c.wrong(down.Part, hintFix(down.Hint()), "%s", down).about(node.Address())
		default:
			c.warn(down.Part, hintFix(down.Hint()), "%s. The relay uses the other nodes", down).about(node.Address())
		}
	}
}

func (j *brokerJudge) judgeAlarm(c *chart) {
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
		c.ok("alarms", "none: RabbitMQ takes messages")
	}
}

func (j *brokerJudge) judgeExchanges(c *chart) {
	for _, name := range j.o.exchangesOf(j.f.asked) {
		err, asked := j.f.exchanges[name]
		switch {
		case !asked: // the connection broke before this check
		case isNotFound(err):
			c.wrong("exchange",
				j.curl("PUT", "exchanges", name, `{"type": "topic", "durable": true}`).
					noted("or the type that its consumers expect"),
				"exchange %q does not exist in virtual host %q%s", name, j.f.vhost, j.namedBy(name)).about(name)
		case err != nil:
			c.warn("exchange", lookUpFix(err), "%s. The relay publishes to it nevertheless",
				j.unknown(fmt.Sprintf("exchange %q", name), err)).about(name)
		default:
			c.ok("exchange", "%q exists", name).about(name)
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
func lookUpFix(err error) fix {
	var exception *amqp091.Error
	if errors.As(err, &exception) && exception.Code == amqp091.AccessRefused {
		return remark("# upgrade RabbitMQ to 4.2.7 or 4.3.1, or grant the user configure on it: " +
			"4.2.6 and 4.3.0 ask for that at each look-up")
	}
	return remark("# see RabbitMQ's log")
}

// namedBy says which rows or settings name an exchange.
func (j *brokerJudge) namedBy(name string) string {
	if name == j.o.Exchange {
		return " (--exchange)"
	}
	if name == j.o.EventsExchange {
		return " (--events-exchange)"
	}
	return ""
}

func isNotFound(err error) bool {
	var exception *amqp091.Error
	return errors.As(err, &exception) && exception.Code == amqp091.NotFound
}

// isDown reports whether a queue exists, and its node is down.
func isDown(err error) bool {
	var exception *amqp091.Error
	return isNotFound(err) && errors.As(err, &exception) && !amqpdial.NoQueue(exception)
}

// judgeWrites reports how the broker answered the test messages.
func (j *brokerJudge) judgeWrites(c *chart) {
	if j.o.NoProbe {
		c.ok("write", "not checked (--no-probe)")
		return
	}
	denied := map[string]int{}
	for _, d := range j.o.written(j.f.asked) {
		if d.exchange == "" {
			d.routingKey = ""
		}
		err, asked := j.f.writes[d]
		switch {
		case !asked || isNotFound(err): // reported already
		case err == nil:
			if _, told := denied[d.exchange]; !told {
				denied[d.exchange] = 0
			}
		default:
			if denied[d.exchange]++; denied[d.exchange] == 1 {
				c.wrong("write", j.permitFix(d.exchange, err), "user %q may not publish to %s%s: %s",
					j.f.user, called(d.exchange), withKey(d), reasonOf(err)).about(d.exchange)
			}
		}
	}
	for _, exchange := range sortedKeys(denied) {
		if denied[exchange] == 0 {
			c.ok("write", "user %q may publish to %s", j.f.user, called(exchange)).about(exchange)
		}
	}
}

func withKey(d destination) string {
	if d.exchange == "" {
		return ""
	}
	return fmt.Sprintf(" with routing key %q", d.routingKey)
}

// permitFix gives the user only the exchanges that the settings name: any application can insert a row with the name of
// any exchange. A limit to some routing keys is never lifted for the key of a row.
func (j *brokerJudge) permitFix(exchange string, err error) fix {
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
	names := map[string]bool{permissionName(j.o.Exchange): true}
	if j.o.EventsExchange != "" {
		names[permissionName(j.o.EventsExchange)] = true
	}
	var quoted []string
	for _, name := range sortedKeys(names) {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return command("rabbitmqctl set_permissions -p %s %s%s '' %s ''",
		vhost, problem.Dashed(j.f.user), user, shell("^("+strings.Join(quoted, "|")+")$")).
		noted("configure, write, read: it replaces what the user had. Add the exchanges that rows may name")
}

// permissionName is the exchange's name in permissions.
func permissionName(exchange string) string {
	if exchange == "" {
		return "amq.default"
	}
	return exchange
}

func reasonOf(err error) string {
	var exception *amqp091.Error
	if errors.As(err, &exception) {
		return exception.Reason
	}
	return err.Error()
}

func called(exchange string) string {
	if exchange == "" {
		return "the default exchange"
	}
	return fmt.Sprintf("exchange %q", exchange)
}

// judgeManagement reports what cannot be checked without the HTTP API.
func (j *brokerJudge) judgeManagement(c *chart) {
	err := j.f.management.err
	if err == nil {
		c.ok("management", "the HTTP API at %s answers", j.f.management.url)
		return
	}
	hidden := "not checked: limits of queues. RabbitMQ drops confirmed messages at a limit"
	if j.needsManagement() {
		hidden = "not checked: whether a queue takes each message, alternate exchanges, and limits of queues. " +
			"Confirmed messages can be lost there"
	}
	var status *statusError
	switch {
	case j.o.NoProbe:
		c.ok("management", "the HTTP API at %s does not answer (%s), and --no-probe skips the checks that need it",
			j.f.management.url, err)
	case errors.As(err, &status) && (status.code == 401 || status.code == 403):
		c.warn("management",
			command("rabbitmqctl set_user_tags %s%s management", problem.Dashed(j.f.user), shell(j.f.user)).
				noted("or name a user that has the tag: --management-url http://USER:PASSWORD@HOST:15672"),
			"the HTTP API at %s does not let user %q in (%s): %s", j.f.management.url, j.f.user, err, hidden)
	default:
		c.warn("management",
			command("rabbitmq-plugins enable rabbitmq_management").
				noted("or name its address: --management-url http://HOST:15672; or --no-probe"),
			"the HTTP API at %s does not answer (%s): %s", j.f.management.url, err, hidden)
	}
}

// needsManagement: queues of the default exchange can be checked with AMQP alone.
func (j *brokerJudge) needsManagement() bool {
	for _, d := range j.f.asked {
		if d.exchange != "" && !isNotFound(j.f.exchanges[d.exchange]) {
			return true
		}
	}
	return false
}

// curl returns a call of the management API, which works with every version.
func (j *brokerJudge) curl(method, kind, path, body string) fix {
	base := j.f.management.url
	if base == "" {
		base = "http://HOST:15672"
	}
	address := base + "/api/" + kind + "/" + url.PathEscape(j.f.vhost)
	for _, part := range strings.Split(path, "\x00") {
		address += "/" + url.PathEscape(part)
	}
	return command("curl -u ADMIN -X %s %s -H 'Content-Type: application/json' -d %s",
		method, shell(address), shell(body))
}
