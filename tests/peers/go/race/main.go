// The Go client in a race: what a message costs, from the first one received to the last one
// settled.
//
// A line of JSON in is a race, {"do": …, "topic": …, "messages": …}; a line of JSON out is its time,
// {"is": seconds} or {"error": …}. The topic is filled before, and each race subscribes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const patience = 60 * time.Second

type order struct {
	Do       string
	Topic    string
	Messages int
	InFlight int   `json:"in_flight"`
	DelayMs  int64 `json:"delay_ms"`
}

type race struct {
	pulsar.Consumer
	order
	acknowledged chan struct{}
	began        time.Time
}

func (r *race) BeforeConsume(pulsar.ConsumerMessage) {}

func (r *race) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// ReconsumeLater has no result: that its message is acknowledged tells that the letter is written.
func (r *race) OnAcknowledge(pulsar.Consumer, pulsar.MessageID) {
	r.acknowledged <- struct{}{}
}

func (r *race) next() (pulsar.Message, error) {
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := r.Receive(wait)
	if err == nil && r.began.IsZero() {
		r.began = time.Now()
	}
	return message, err
}

func (r *race) handOn(message pulsar.Message) {
	r.ReconsumeLater(message, time.Duration(r.DelayMs)*time.Millisecond)
}

func (r *race) settled(count int) error {
	late := time.After(patience)
	for range count {
		select {
		case <-r.acknowledged:
		case <-late:
			return errors.New("not acknowledged in time")
		}
	}
	return nil
}

// handOnAll hands on, one by one or as many at a time as the producer takes.
func (r *race) handOnAll(oneByOne bool) error {
	for range r.Messages {
		message, err := r.next()
		if err != nil {
			return err
		}
		r.handOn(message)
		if oneByOne {
			if err := r.settled(1); err != nil {
				return err
			}
		}
	}
	if oneByOne {
		return nil
	}
	return r.settled(r.Messages)
}

// acknowledgeAll receives and acknowledges; with loop, only what comes the second time.
func (r *race) acknowledgeAll(loop bool) error {
	for done := 0; done < r.Messages; {
		message, err := r.next()
		if err != nil {
			return err
		}
		if _, again := message.Properties()["RECONSUMETIMES"]; loop && !again {
			r.handOn(message)
			continue
		}
		if err := r.Ack(message); err != nil {
			return err
		}
		done++
	}
	if loop {
		return r.settled(2 * r.Messages)
	}
	return nil
}

func run(client pulsar.Client, o order) (float64, error) {
	r := &race{order: o, acknowledged: make(chan struct{}, 4*o.Messages)}
	options := pulsar.ConsumerOptions{
		Topic:                       o.Topic,
		SubscriptionName:            "race",
		Type:                        pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		RetryEnable:                 true,
		DLQ: &pulsar.DLQPolicy{
			MaxDeliveries:   16,
			ProducerOptions: pulsar.ProducerOptions{MaxPendingMessages: o.InFlight},
		},
	}
	if o.Do != "acknowledge" {
		options.Interceptors = pulsar.ConsumerInterceptors{r}
	}
	var err error
	if r.Consumer, err = client.Subscribe(options); err != nil {
		return 0, err
	}
	defer r.Close()
	switch o.Do {
	case "acknowledge", "loop":
		err = r.acknowledgeAll(o.Do == "loop")
	case "reconsume", "pipeline":
		err = r.handOnAll(o.Do == "reconsume")
	default:
		err = fmt.Errorf("no such race: %q", o.Do)
	}
	return time.Since(r.began).Seconds(), err
}

func main() {
	logger := logrus.New()
	logger.SetLevel(logrus.WarnLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:    os.Args[1],
		Logger: log.NewLoggerWithLogrus(logger),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer client.Close()
	answers := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var o order
		seconds, err := 0.0, json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			seconds, err = run(client, o)
		}
		if err != nil {
			_ = answers.Encode(map[string]any{"error": err.Error()})
		} else {
			_ = answers.Encode(map[string]any{"is": seconds})
		}
	}
}
