------------------------------ MODULE HandOff ------------------------------
(* One message of a subscription with retry letters, and all copies of it: how the consumers, a
   redrive and the broker move it between the topic, the retry topic and the dead-letter topic.

   docs/protocol.md explains the variables, actions, bounds and invariants.  tests/support/model/
   machine.py is the same state machine in Python, and a test compares the two graphs. *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Consumers,      \* subscribers of the subscription
  Redriver,       \* the process that redrives
  MaxRetries,     \* N: retries of a message, before it goes to the dead-letter topic
  MaxRedrives,    \* the loop guard
  MaxCopies,      \* bound of the state space: copies of the message that are ever stored
  MaxFaults,      \* bound of the state space
  Window,         \* whether consumers remember the letters that they have received
  Own,            \* whether subscribers remember the letters that they have published
  ClocksAgree,    \* whether consumers know which letter was published first
  Faults,         \* the kinds of faults that happen
  Bug             \* a planted error: "none", or the name of one

Procs == Consumers \cup {Redriver}
None == [place |-> "", count |-> 0, gen |-> 0, depth |-> 0, stamp |-> 0]
Nothing == [failures |-> 0, stamp |-> 0, issued |-> 0]

VARIABLES
  copies,   \* by number: place, count, gen, depth, stamp, and at: "delayed", "stored", "acked", or
            \* the process that the broker has delivered it to
  work,     \* by process: the copies that it works on, with the phase and the letter to publish
  seen,     \* by process: for each letter in hand, the equal letters that existed when it came
  known,    \* by process: the letters that it has received
  handled,  \* by process: the letters that are superfluous if they come
  own,      \* by process: the memory of the letters that it has published
  up,       \* by consumer: whether its process runs
  ended,    \* by generation: whether a handler has succeeded
  runs,     \* by generation: how many handlers have failed, at most MaxRetries + 1
  faults    \* how many faults have happened

vars == <<copies, work, seen, known, handled, own, up, ended, runs, faults>>
memory == <<seen, known, handled, own>>

Numbers == 1..Len(copies)
Gens == 0..MaxRedrives
At(k, place) == [copies EXCEPT ![k].at = place]
Add(copy) == Append(copies, copy)
Of(p, k) == CHOOSE w \in work[p] : w.k = k
Has(p, k) == \E w \in work[p] : w.k = k
Phase(p, k, phase) == \E w \in work[p] : w.k = k /\ w.phase = phase
Set(p, w, new) == [work EXCEPT ![p] = (@ \ {w}) \cup {new}]
Drop(p, w) == [work EXCEPT ![p] = @ \ {w}]
Max(a, b) == IF a > b THEN a ELSE b
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x
Alive(k) == copies[k].at /= "acked"
Fault(kind) == kind \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

(* Only letters of this package's producers have an identity; what a redrive publishes has none. *)
IsRecognizable(k) == copies[k].place = "retry" /\ (copies[k].gen = 0 \/ Bug = "dedupe_by_content")
Equal(j, k) ==
  /\ IsRecognizable(j) /\ IsRecognizable(k)
  /\ copies[j].count = copies[k].count \/ Bug = "dedupe_by_content"
Twins(k) == {j \in Numbers : Equal(j, k)}

Init ==
  /\ copies = <<[place |-> "main", count |-> 0, gen |-> 0, depth |-> 0, stamp |-> 0,
                 at |-> "stored"]>>
  /\ work = [p \in Procs |-> {}]
  /\ seen = [p \in Consumers |-> {}]
  /\ known = [p \in Consumers |-> {}]
  /\ handled = [p \in Consumers |-> {}]
  /\ own = [p \in Consumers |-> Nothing]
  /\ up = [p \in Consumers |-> TRUE]
  /\ ended = [g \in Gens |-> FALSE]
  /\ runs = [g \in Gens |-> 0]
  /\ faults = 0

(* ------------------------------------ delivery ----------------------------------------------- *)

(* The broker delivers a letter when its delay is over. *)
Due(k) ==
  /\ copies[k].at = "delayed"
  /\ copies' = At(k, "stored")
  /\ UNCHANGED <<work, memory, up, ended, runs, faults>>

(* The window drops a letter that was made before its twin was received and then settled. *)
IsDuplicate(p, k) ==
  /\ Window /\ IsRecognizable(k)
  /\ k \notin known[p]
  /\ \E s \in handled[p] :
       /\ Equal(s[1], k)
       /\ s[2] = 0 \/ k \in s[3]
(* A subscriber drops a letter that is older than the last one that it has published. *)
IsSuperseded(p, k) ==
  /\ Own /\ IsRecognizable(k)
  /\ copies[k].count <= own[p].failures /\ copies[k].stamp < own[p].stamp
Snapshot(k) == <<k, IF ClocksAgree /\ Bug /= "dedupe_by_content" THEN 1 ELSE 0,
                 IF ClocksAgree /\ Bug /= "dedupe_by_content" THEN Twins(k) ELSE {}>>

(* The memories are limited, so a letter that could be dropped may be handled too. *)
Deliver(p, k) == \E phase \in {"got", "drop", "supersede"} :
  /\ p \in Consumers /\ up[p]
  /\ phase = "drop" => IsDuplicate(p, k)
  /\ phase = "supersede" => IsSuperseded(p, k)
  /\ copies[k].at = "stored" /\ copies[k].place /= "dlq"
  /\ ~Has(p, k)
  /\ copies' = At(k, p)
  /\ IF Window /\ IsRecognizable(k)
       THEN /\ known' = [known EXCEPT ![p] = @ \cup {k}]
            /\ seen' = IF phase = "drop" \/ \E s \in seen[p] : s[1] = k
                         THEN seen
                         ELSE [seen EXCEPT ![p] = @ \cup {Snapshot(k)}]
       ELSE UNCHANGED <<known, seen>>
  /\ work' = [work EXCEPT ![p] = @ \cup
                {[k |-> k, letter |-> None, phase |-> phase]}]
  /\ UNCHANGED <<handled, own, up, ended, runs, faults>>

(* ------------------------------------ handling ----------------------------------------------- *)

Settled(p, k) ==
  LET found == {s \in seen[p] : s[1] = k} IN
  /\ seen' = [seen EXCEPT ![p] = @ \ found]
  /\ handled' = [handled EXCEPT ![p] = @ \cup found]
PassedOver(p, k) ==
  /\ seen' = [seen EXCEPT ![p] = {s \in @ : s[1] /= k}]
  /\ UNCHANGED handled

(* A superfluous letter is only acknowledged.  One that is superseded does not count as handled. *)
Skip(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase \in {"drop", "supersede"}
    /\ work' = Set(p, w, [w EXCEPT !.phase = "acking"])
    /\ IF w.phase = "supersede" /\ Bug /= "superseded_counts"
         THEN PassedOver(p, k) ELSE Settled(p, k)
    /\ UNCHANGED <<copies, known, own, up, ended, runs, faults>>

Succeed(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase = "got"
    /\ work' = Set(p, w, [w EXCEPT !.phase = "acking"])
    /\ ended' = [ended EXCEPT ![copies[k].gen] = TRUE]
    /\ Settled(p, k)
    /\ UNCHANGED <<copies, known, own, up, runs, faults>>

Letter(k, before, reject, stamp) ==
  LET count == IF Bug = "no_count" THEN before ELSE before + 1
      dead == reject \/ count > MaxRetries
  IN [place |-> IF dead THEN "dlq" ELSE "retry",
      count |-> IF dead THEN copies[k].count ELSE count,
      gen |-> copies[k].gen, depth |-> copies[k].depth + 1, stamp |-> stamp]

(* The handler fails, and the letter is made: a retry, or a dead letter if the retries are used up,
   or if the policy finds that no retry helps.  A subscriber's process counts all copies of the
   message together, if it remembers.  The letter's stamp is greater than all that the process
   knows.  Other processes' stamps may be smaller or greater: their clocks differ. *)
AllStamps == {copies[k].stamp : k \in Numbers} \cup {own[p].issued : p \in Consumers}
Stamps(p, k) ==
  LET least == Max(copies[k].stamp, own[p].issued) + 1
  IN {least, Max(least, MaxOf(AllStamps) + 1)}
Handled(p, k, reject) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase = "got"
    /\ IF Own /\ copies[k].gen = 0
         THEN \E before \in {copies[k].count, Max(copies[k].count, own[p].failures)} :
                \E stamp \in Stamps(p, k) :
                  /\ work' = Set(p, w, [w EXCEPT !.phase = "publish",
                                                 !.letter = Letter(k, before, reject, stamp)])
                  /\ own' = [own EXCEPT ![p] = [@ EXCEPT !.failures = Max(@, before + 1),
                                                        !.issued = stamp]]
         ELSE /\ work' = Set(p, w, [w EXCEPT !.phase = "publish",
                                             !.letter = Letter(k, copies[k].count, reject, 0)])
              /\ UNCHANGED own
    /\ runs' = [runs EXCEPT ![copies[k].gen] =
                  IF reject \/ @ > MaxRetries THEN MaxRetries + 1 ELSE @ + 1]
    /\ UNCHANGED <<copies, seen, known, handled, up, ended, faults>>
Fail(p, k) == Handled(p, k, FALSE)
Reject(p, k) == "reject" \in Faults /\ Handled(p, k, TRUE)

(* A redrive takes a dead letter, unless it was redriven too often. *)
Redrive(k) ==
  /\ copies[k].place = "dlq" /\ copies[k].at = "stored"
  /\ ~Has(Redriver, k)
  /\ copies[k].gen < MaxRedrives \/ Bug = "no_loop_guard"
  /\ copies' = At(k, Redriver)
  /\ work' = [work EXCEPT ![Redriver] = @ \cup
       {[k |-> k, phase |-> "publish",
         letter |-> [place |-> "retry", count |-> 0, depth |-> 0, stamp |-> 0,
                     gen |-> IF Bug = "no_loop_guard" THEN copies[k].gen
                             ELSE copies[k].gen + 1]]}]
  /\ UNCHANGED <<memory, up, ended, runs, faults>>

(* ------------------------------------ handing on --------------------------------------------- *)

(* Letters of retries have a delay; dead letters, and what a redrive publishes, have none. *)
Stored(letter) ==
  [place |-> letter.place, count |-> letter.count, gen |-> letter.gen, depth |-> letter.depth,
   stamp |-> letter.stamp,
   at |-> IF letter.place = "retry" /\ letter.depth > 0 THEN "delayed" ELSE "stored"]

(* The broker stores the letter. *)
Publish(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase = "publish"
    /\ Len(copies) < MaxCopies
    /\ copies' = Add(Stored(w.letter))
    /\ work' = Set(p, w, [w EXCEPT !.phase = "sent"])
    /\ UNCHANGED <<memory, up, ended, runs, faults>>

(* The receipt arrives, and the original is acknowledged: nothing else has to happen between. *)
Receipt(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ (w.phase = "sent" \/ (Bug = "ack_before_receipt" /\ w.phase = "publish"))
    /\ work' = Set(p, w, [w EXCEPT !.phase = "acking"])
    /\ IF p \in Consumers
         THEN /\ Settled(p, k)
              /\ own' = IF Own /\ copies[k].gen = 0
                          THEN [own EXCEPT ![p].stamp = Max(@, w.letter.stamp)] ELSE own
         ELSE UNCHANGED <<seen, handled, own>>
    /\ UNCHANGED <<copies, known, up, ended, runs, faults>>

(* pulsar-client sends acknowledgements later, in groups; the broker gets this one. *)
Acknowledged(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase = "acking"
    /\ copies' = At(k, "acked")
    /\ work' = Drop(p, w)
    /\ UNCHANGED <<memory, up, ended, runs, faults>>

(* ------------------------------------ faults ------------------------------------------------- *)

(* The letter is not published, or its receipt is lost: "sent" means that the broker has stored it.
   Either the message comes back, or the letter is published again. *)
ComeBack(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase \in {"publish", "sent"}
    /\ Fault(IF w.phase = "publish" THEN "refuse" ELSE "lose")
    /\ copies' = IF Bug = "lost_come_back" THEN copies
                 ELSE IF copies[k].at = p
                        THEN IF Bug = "refusal_spends" /\ copies[k].count < MaxRetries
                               THEN [copies EXCEPT ![k].at = "stored", ![k].count = MaxRetries]
                               ELSE At(k, "stored")
                        ELSE copies
    /\ work' = Drop(p, w)
    /\ UNCHANGED <<memory, up, ended, runs>>
Again(p, k) ==
  \E w \in work[p] :
    /\ w.k = k /\ w.phase = "sent"
    /\ Fault("lose")
    /\ work' = Set(p, w, [w EXCEPT !.phase = "publish"])
    /\ UNCHANGED <<copies, memory, up, ended, runs>>

(* kill -9: what the process had in hand is delivered again, and it forgets everything. *)
Back(p) == [k \in Numbers |-> IF copies[k].at = p THEN [copies[k] EXCEPT !.at = "stored"]
                                                   ELSE copies[k]]
Kill(p) ==
  /\ p \in Consumers => up[p]
  /\ work[p] /= {} \/ (p \in Consumers /\ (known[p] /= {} \/ own[p] /= Nothing))
  /\ Fault("kill")
  /\ copies' = Back(p)
  /\ work' = [work EXCEPT ![p] = {}]
  /\ IF p \in Consumers
       THEN /\ up' = [up EXCEPT ![p] = FALSE]
            /\ seen' = [seen EXCEPT ![p] = {}]
            /\ known' = [known EXCEPT ![p] = {}]
            /\ handled' = [handled EXCEPT ![p] = {}]
            /\ own' = [own EXCEPT ![p] = Nothing]
       ELSE UNCHANGED <<up, memory>>
  /\ UNCHANGED <<ended, runs>>
Restart(p) ==
  /\ ~up[p]
  /\ up' = [up EXCEPT ![p] = TRUE]
  /\ UNCHANGED <<copies, work, memory, ended, runs, faults>>

(* A connection breaks, a topic is unloaded, or the message is nacked: the broker delivers it again
   while its process still works on it, and drops an acknowledgement that is under way. *)
Redeliver(k) ==
  \E p \in Procs :
    /\ copies[k].at = p
    /\ Fault("redeliver")
    /\ copies' = At(k, "stored")
    /\ work' = IF Phase(p, k, "acking") THEN Drop(p, Of(p, k)) ELSE work
    /\ UNCHANGED <<memory, up, ended, runs>>

(* The broker dies before it has stored an acknowledgement. *)
Forget(k) ==
  /\ copies[k].at = "acked"
  /\ Fault("forget")
  /\ copies' = At(k, "stored")
  /\ UNCHANGED <<work, memory, up, ended, runs>>

(* ------------------------------------ behaviours --------------------------------------------- *)

Step(p, k) ==
  \/ Skip(p, k) \/ Succeed(p, k) \/ Fail(p, k) \/ Reject(p, k)
  \/ Publish(p, k) \/ Receipt(p, k) \/ Acknowledged(p, k)
Next ==
  \/ \E p \in Consumers : Restart(p)
  \/ \E p \in Procs : Kill(p)
  \/ \E k \in Numbers :
       \/ Due(k) \/ Redrive(k) \/ Redeliver(k) \/ Forget(k)
       \/ \E p \in Consumers : Deliver(p, k) \/ Skip(p, k) \/ Succeed(p, k) \/ Fail(p, k)
                                 \/ Reject(p, k)
       \/ \E p \in Procs :
            \/ Publish(p, k) \/ Receipt(p, k) \/ Acknowledged(p, k)
            \/ ComeBack(p, k) \/ Again(p, k)

(* Something that can go on does so in the end, whatever it is.  Operators need not do anything
   (Redrive), and faults need not happen. *)
Progress ==
  \/ \E p \in Consumers : Restart(p)
  \/ \E k \in Numbers :
       \/ Due(k)
       \/ \E p \in Consumers : Deliver(p, k)
       \/ \E p \in Procs : Step(p, k)
Fairness == WF_vars(Progress)
Spec == Init /\ [][Next]_vars /\ Fairness

(* ------------------------------------ what holds --------------------------------------------- *)

(* A message that has not ended has a copy at the broker, of the same generation or a later one. *)
HasCopy ==
  \A g \in Gens :
    \/ \E h \in Gens : h >= g /\ ended[h]
    \/ ~\E k \in Numbers : copies[k].gen >= g
    \/ \E k \in Numbers : Alive(k) /\ copies[k].gen >= g
(* The retries of one generation are limited, and the letters of one chain too. *)
Bounded == \A k \in Numbers : copies[k].count <= MaxRetries /\ copies[k].depth <= MaxRetries + 1
(* A message is dead only after its handler has failed N + 1 times since the last redrive. *)
BudgetIsFailures ==
  \A k \in Numbers : copies[k].place = "dlq" => runs[copies[k].gen] = MaxRetries + 1
(* What will still be handled, or lies in the dead-letter topic: not what is being handed on. *)
Active == {k \in Numbers : Alive(k) /\ ~\E p \in Procs : \E w \in work[p] :
                                            w.k = k /\ w.phase \in {"sent", "acking"}}
(* Without a fault there is one copy; a redrive makes one message of a dead letter, and one more for
   a fault at most; and it stops at the limit. *)
First(g) == {k \in Numbers : copies[k].gen = g /\ copies[k].depth = 0}
Dead(g) == {k \in Numbers : copies[k].gen = g /\ copies[k].place = "dlq"}
NoMultiplication ==
  /\ faults = 0 => Cardinality(Active) <= 1
  /\ Cardinality(First(0)) = 1
  /\ \A g \in 1..MaxRedrives : Cardinality(First(g)) <= Cardinality(Dead(g - 1)) + faults
(* The bound of the state space cuts nothing off. *)
HasRoom == Len(copies) < MaxCopies

(* A letter is dropped only if another copy is left, or the message was handled. *)
DropsLeaveOne ==
  [][\A p \in Consumers : \A k \in Numbers :
       Skip(p, k) =>
         (\E h \in Gens : h >= copies[k].gen /\ ended[h]) \/ \E j \in Numbers : j /= k /\ Alive(j)]_vars

(* Every copy ends: it is acknowledged, or rests in the dead-letter topic. *)
AllEnded ==
  \A k \in Numbers : ~Alive(k) \/ copies[k].place = "dlq"
Ends == <>[]AllEnded

Symmetry == Permutations(Consumers)
=============================================================================
