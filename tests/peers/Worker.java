import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** What worker.py is in Python: handles the messages of a topic, and enters each in a ledger. */
public class Worker {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final JsonNode order;
    private final Path ledger;
    private final PulsarClient client;
    private final Consumer<byte[]> consumer;
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean resting;

    private Worker(JsonNode order) throws Exception {
        this.order = order;
        ledger = Path.of(order.get("ledger").asText());
        client = PulsarClient.builder().serviceUrl(order.get("url").asText()).build();
        consumer = client.newConsumer()
                .topic(order.get("topic").asText())
                .subscriptionName(order.get("subscription").asText())
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(order.get("queue").asInt())
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(16).build())
                .subscribe();
        for (int i = 0; i < order.get("threads").asInt(); i++) {
            Thread thread = new Thread(this::work);
            thread.start();
            threads.add(thread);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever else is printed is no answer
        BufferedReader orders =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Worker worker = null;
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                JsonNode order = JSON.readTree(line);
                if (order.get("do").asText().equals("work")) {
                    worker = new Worker(order);
                } else {
                    worker.rest();
                }
                answer.put("is", null);
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    private void work() {
        while (!resting) {
            try {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    handle(message);
                }
            } catch (Exception error) {
                error.printStackTrace(); // the message comes again
            }
        }
    }

    private void handle(Message<byte[]> message) throws Exception {
        int number = Integer.parseInt(new String(message.getData(), StandardCharsets.UTF_8));
        enter("delivered", number);
        Thread.sleep(order.get("work_ms").asInt());
        if (number % order.get("fails").asInt() == 0 && !message.hasProperty("RECONSUMETIMES")) {
            consumer.reconsumeLater(message, order.get("delay_ms").asInt(), TimeUnit.MILLISECONDS);
        } else {
            enter("processed", number);
            consumer.acknowledge(message);
        }
    }

    private void enter(String event, int number) throws Exception {
        Files.writeString(ledger, event + " " + number + "\n", StandardOpenOption.APPEND);
    }

    private void rest() throws Exception {
        resting = true;
        for (Thread thread : threads) {
            thread.join();
        }
        client.close();
    }
}
