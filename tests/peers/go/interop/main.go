// The Go client, to be told what to do by a test.
//
// A line of JSON in is an order, {"do": …}; a line of JSON out is its answer, {"is": …} or
// {"error": …}. It ends when its input does. Bytes travel in base64. What a test does not say, Go's
// own defaults say, but for the position (Earliest) and the delay of a nack (100 ms).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

// ReconsumeLater tells nobody when it is done, so a test waits this long for the acknowledgement.
const patience = 20 * time.Second

type order struct {
	Do           string
	Topic        string
	Topics       []string
	Subscription string
	Type         string
	Retry        bool
	N            *uint32
	Queue        int
	Consumer     int
	Message      int
	Milliseconds int64
	Properties   map[string]string
	Messages     []content
	Batch        bool
}

type content struct {
	Data        []byte            `json:"data"`
	Key         string            `json:"key"`
	OrderingKey []byte            `json:"ordering_key"`
	EventTime   int64             `json:"event_time"`
	Properties  map[string]string `json:"properties"`
}

type seen struct {
	Handle          int               `json:"handle"`
	Topic           string            `json:"topic"`
	Data            []byte            `json:"data"`
	Properties      map[string]string `json:"properties"`
	Key             string            `json:"key"`
	OrderingKey     []byte            `json:"ordering_key"`
	EventTime       int64             `json:"event_time"`
	RedeliveryCount uint32            `json:"redelivery_count"`
}

var types = map[string]pulsar.SubscriptionType{
	"Exclusive":  pulsar.Exclusive,
	"Failover":   pulsar.Failover,
	"Shared":     pulsar.Shared,
	"Key_Shared": pulsar.KeyShared,
}

type interop struct {
	client    pulsar.Client
	consumers map[int]*consumer
	messages  map[int]pulsar.Message
	last      int
}

// consumer knows which of its messages are acknowledged, by whomever.
type consumer struct {
	pulsar.Consumer
	mutex        sync.Mutex
	acknowledged map[string]bool
	changed      *sync.Cond
	worker       *worker
}

func (c *consumer) BeforeConsume(pulsar.ConsumerMessage) {}

func (c *consumer) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

func (c *consumer) OnAcknowledge(_ pulsar.Consumer, id pulsar.MessageID) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.acknowledged[id.String()] = true
	c.changed.Broadcast()
}

// reconsume returns when the letter is written and the message acknowledged; of a batch nobody hears
// before the last message.
func (c *consumer) reconsume(message pulsar.Message, properties map[string]string, delay time.Duration) error {
	c.ReconsumeLaterWithCustomProperties(message, properties, delay)
	if message.ID().BatchSize() > 1 {
		return nil
	}
	late := time.AfterFunc(patience, c.changed.Broadcast)
	defer late.Stop()
	end := time.Now().Add(patience)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for !c.acknowledged[message.ID().String()] {
		if !time.Now().Before(end) {
			return errors.New("not acknowledged in time")
		}
		c.changed.Wait()
	}
	return nil
}

// worker fails every message until its second retry, and "poison" always.
type worker struct {
	rest    chan struct{}
	done    chan struct{}
	handled [][]any
	failure error
}

func work(c *consumer) *worker {
	w := &worker{rest: make(chan struct{}), done: make(chan struct{}), handled: [][]any{}}
	go func() {
		defer close(w.done)
		for {
			select {
			case <-w.rest:
				return
			case message := <-c.Chan():
				if w.failure = w.handle(c, message); w.failure != nil {
					return
				}
			}
		}
	}()
	return w
}

func (w *worker) handle(c *consumer, message pulsar.Message) error {
	text := string(message.Payload())
	count, _ := strconv.Atoi(message.Properties()["RECONSUMETIMES"])
	w.handled = append(w.handled, []any{text, count})
	if count < 2 || strings.HasPrefix(text, "poison") {
		return c.reconsume(message, nil, 10*time.Millisecond)
	}
	return c.Ack(message)
}

func (w *worker) stop() ([][]any, error) {
	close(w.rest)
	<-w.done
	return w.handled, w.failure
}

func (i *interop) obey(o order) (any, error) {
	switch o.Do {
	case "subscribe":
		return i.subscribe(o)
	case "receive":
		return i.receive(o)
	case "send":
		return i.send(o)
	case "close all":
		return nil, i.closeAll()
	}
	c, known := i.consumers[o.Consumer]
	if !known {
		return nil, fmt.Errorf("no consumer %d for %q", o.Consumer, o.Do)
	}
	message := i.messages[o.Message]
	switch o.Do {
	case "reconsume":
		return nil, c.reconsume(message, o.Properties, time.Duration(o.Milliseconds)*time.Millisecond)
	case "acknowledge":
		return nil, c.Ack(message)
	case "nack":
		c.Nack(message)
		return nil, nil
	case "work":
		c.worker = work(c)
		return nil, nil
	case "rest":
		w := c.worker
		c.worker = nil
		return w.stop()
	case "close":
		c.Close()
		delete(i.consumers, o.Consumer)
		return nil, nil
	}
	return nil, fmt.Errorf("no such order: %q", o.Do)
}

func (i *interop) subscribe(o order) (int, error) {
	c := &consumer{acknowledged: map[string]bool{}}
	c.changed = sync.NewCond(&c.mutex)
	options := pulsar.ConsumerOptions{
		Topics:                      o.Topics,
		SubscriptionName:            o.Subscription,
		Type:                        types[o.Type],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		RetryEnable:                 o.Retry,
		ReceiverQueueSize:           o.Queue,
		NackRedeliveryDelay:         100 * time.Millisecond,
		Interceptors:                pulsar.ConsumerInterceptors{c},
	}
	if o.N != nil {
		options.DLQ = &pulsar.DLQPolicy{MaxDeliveries: *o.N}
		if !o.Retry { // then Go has no name of its own
			options.DLQ.DeadLetterTopic = o.Topics[0] + "-" + o.Subscription + "-DLQ"
		}
	}
	var err error
	if c.Consumer, err = i.client.Subscribe(options); err != nil {
		return 0, err
	}
	i.last++
	i.consumers[i.last] = c
	return i.last, nil
}

func (i *interop) receive(o order) (any, error) {
	wait, cancel := context.WithTimeout(context.Background(), time.Duration(o.Milliseconds)*time.Millisecond)
	defer cancel()
	message, err := i.consumers[o.Consumer].Receive(wait)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i.last++
	i.messages[i.last] = message
	event := int64(0)
	if !message.EventTime().IsZero() {
		event = message.EventTime().UnixMilli()
	}
	return seen{
		Handle:          i.last,
		Topic:           message.Topic(),
		Data:            message.Payload(),
		Properties:      message.Properties(),
		Key:             message.Key(),
		OrderingKey:     []byte(message.OrderingKey()),
		EventTime:       event,
		RedeliveryCount: message.RedeliveryCount(),
	}, nil
}

// send publishes all the messages of the order, as one batch if it says so, and returns their ids.
func (i *interop) send(o order) ([]string, error) {
	producer, err := i.client.CreateProducer(pulsar.ProducerOptions{
		Topic:                   o.Topic,
		DisableBatching:         !o.Batch,
		BatchingMaxPublishDelay: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	ids := make([]string, len(o.Messages))
	failed := make(chan error, len(o.Messages))
	for number, each := range o.Messages {
		message := &pulsar.ProducerMessage{
			Payload:     each.Data,
			Key:         each.Key,
			OrderingKey: string(each.OrderingKey),
			Properties:  each.Properties,
		}
		if each.EventTime > 0 {
			message.EventTime = time.UnixMilli(each.EventTime)
		}
		producer.SendAsync(context.Background(), message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err == nil {
					ids[number] = id.String()
				}
				failed <- err
			})
	}
	if err := producer.FlushWithCtx(context.Background()); err != nil {
		return nil, err
	}
	for range o.Messages {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// closeAll leaves nothing of one test to the next.
func (i *interop) closeAll() error {
	var failure error
	for _, c := range i.consumers {
		if c.worker != nil {
			if _, err := c.worker.stop(); err != nil {
				failure = err
			}
		}
		c.Close()
	}
	i.consumers = map[int]*consumer{}
	i.messages = map[int]pulsar.Message{}
	return failure
}

func run(orders io.Reader, answers io.Writer, serviceURL string) error {
	logger := logrus.New()
	logger.SetLevel(logrus.WarnLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:    serviceURL,
		Logger: log.NewLoggerWithLogrus(logger),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	program := &interop{client: client, consumers: map[int]*consumer{}, messages: map[int]pulsar.Message{}}
	lines := bufio.NewScanner(orders)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(answers)
	for lines.Scan() {
		var o order
		answer := map[string]any{}
		is, err := any(nil), json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			is, err = program.obey(o)
		}
		if err != nil {
			answer["error"] = err.Error()
		} else {
			answer["is"] = is
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), program.closeAll())
}

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
