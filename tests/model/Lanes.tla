------------------------------- MODULE Lanes -------------------------------
(* The messages of one key of a Key_Shared subscription with durable ordered lanes: the topic, the
   stream of the messages that wait behind a failed one, and the log of claims that says whether the
   key is held.  Keys do not influence each other, so one is enough.

   docs/durable-lanes.md explains the variables, actions, bounds and invariants. *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Procs,          \* processes of the subscription; each reads the topic, the stream and the log
  Last,           \* the number of messages
  MaxHand,        \* how many messages of the topic a process holds
  MaxFails,       \* bound of the state space: failures outside of the stream
  MaxFaults,      \* bound of the state space
  MaxStream,      \* bound of the state space: entries of the stream
  MaxLog,         \* bound of the state space: records of the log
  Lags,           \* whether a process reads the log record by record, or always to its end
  Faults,         \* the kinds of faults that happen
  Bug             \* a planted error: "none", or the name of one

Messages == 1..Last

VARIABLES
  main,     \* by message: "stored", "acked", or the process that the broker has delivered it to
  owner,    \* the process to which the broker delivers the key's messages of the topic
  stream,   \* the entries, in order: the message, and at: as in main
  sowner,   \* the process to which the broker delivers the key's entries of the stream
  log,      \* the records, in order: a claim, or a release: of one claim, and all up to an older one
  seen,     \* by process: how many records it has read
  hand,     \* by process: the messages of the topic in hand, in order, and whether each is fresh:
            \* the process has read the log to its end since it received the message
  phase,    \* by process: what happens to the first message in hand
  claim,    \* by process: its last claim, 0 without one
  tail,     \* by process: the place of the last entry that it has published, or of the first one
            \* of several equal ones
  under,    \* by process: the claim that it had when it published this entry
  shand,    \* by process: the entry in hand, 0 without one; and whether it was handled
  acks,     \* by process: messages whose acknowledgement is not sent yet
  sacks,    \* by process: the same for entries of the stream
  done,     \* the place up to which the entries are reported as ended
  ghosts,   \* what killed processes have sent and the broker has not stored yet
  ended,    \* the messages that were handled successfully, or are dead, at least once
  fails, faults

vars == <<main, owner, stream, sowner, log, seen, hand, phase, claim, tail, under, shand, acks, sacks,
          done, ghosts, ended, fails, faults>>

Max(a, b) == IF a > b THEN a ELSE b
MaxOf(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
Fault(kind) == kind \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

(* Without these faults it makes no difference which process handles the stream, or when an entry is
   acknowledged: fewer states. *)
StreamIsSafe == Faults \cap {"move", "kill", "cut stream"} = {}

(* The claims that are not released, as somebody sees who has read *s* records; and the newest. *)
Live(s) ==
  {i \in 1..s : log[i].is = "claim" /\ ~\E j \in 1..s : log[j].is = "release"
                                       /\ (log[j].upto >= i \/ log[j].claim = i)}
Newest(s) == MaxOf(Live(s))
IsHeld(p) == Live(seen[p]) /= {}
(* Only the newest claim counts: who has an older one lost the key meanwhile. *)
IsMine(p) == claim[p] /= 0 /\ Newest(seen[p]) = claim[p]
IsUpToDate(p) == seen[p] = Len(log)
First(p) == hand[p][1].m

Init ==
  /\ main = [m \in Messages |-> "stored"]
  /\ owner \in Procs /\ sowner \in (IF StreamIsSafe THEN {owner} ELSE Procs)
  /\ stream = <<>> /\ log = <<>>
  /\ seen = [p \in Procs |-> 0]
  /\ hand = [p \in Procs |-> <<>>]
  /\ phase = [p \in Procs |-> "wait"]
  /\ claim = [p \in Procs |-> 0] /\ tail = [p \in Procs |-> 0] /\ under = [p \in Procs |-> 0]
  /\ shand = [p \in Procs |-> <<0, FALSE>>]
  /\ acks = [p \in Procs |-> {}] /\ sacks = [p \in Procs |-> {}]
  /\ done = 0 /\ ghosts = {} /\ ended = {} /\ fails = 0 /\ faults = 0

(* ------------------------------------ the broker --------------------------------------------- *)

(* Key_Shared: in order, and only when no other process has an unacknowledged message of the key. *)
Deliver(p) ==
  /\ p = owner /\ Len(hand[p]) < MaxHand
  /\ ~\E m \in Messages : main[m] \in Procs \ {p}
  /\ \E m \in Messages :
       /\ main[m] = "stored" /\ ~\E n \in Messages : n < m /\ main[n] = "stored"
       /\ main' = [main EXCEPT ![m] = p]
       /\ hand' = [hand EXCEPT ![p] = Append(@, [m |-> m, fresh |-> FALSE])]
  /\ UNCHANGED <<owner, stream, sowner, log, seen, phase, claim, tail, under, shand, acks, sacks, done,
                 ghosts, ended, fails, faults>>
StreamDeliver(p) ==
  /\ p = sowner /\ shand[p][1] = 0
  /\ ~\E k \in 1..Len(stream) : stream[k].at \in Procs \ {p}
  /\ \E k \in 1..Len(stream) :
       /\ stream[k].at = "stored" /\ ~\E n \in 1..(k - 1) : stream[n].at = "stored"
       /\ stream' = [stream EXCEPT ![k].at = p]
       /\ shand' = [shand EXCEPT ![p] = <<k, FALSE>>]
  /\ UNCHANGED <<main, owner, sowner, log, seen, hand, phase, claim, tail, under, acks, sacks, done,
                 ghosts, ended, fails, faults>>

(* Acknowledgements are sent later, in groups. The broker accepts them of every consumer. *)
Flush(p) ==
  /\ \/ /\ \E m \in acks[p] :
             /\ main' = [main EXCEPT ![m] = "acked"]
             /\ acks' = [acks EXCEPT ![p] = @ \ {m}]
        /\ UNCHANGED <<stream, sacks>>
     \/ /\ \E k \in sacks[p] :
             /\ stream' = [stream EXCEPT ![k].at = "acked"]
             /\ sacks' = [sacks EXCEPT ![p] = @ \ {k}]
        /\ UNCHANGED <<main, acks>>
  /\ UNCHANGED <<owner, sowner, log, seen, hand, phase, claim, tail, under, shand, done, ghosts, ended,
                 fails, faults>>

(* ------------------------------------ the log ------------------------------------------------ *)

Read(p) ==
  /\ seen[p] < Len(log)
  /\ seen' = [seen EXCEPT ![p] = IF Lags THEN @ + 1 ELSE Len(log)]
  /\ UNCHANGED <<main, owner, stream, sowner, log, hand, phase, claim, tail, under, shand, acks, sacks,
                 done, ghosts, ended, fails, faults>>
(* The process asks for the end of the log, and has read that far. *)
Barrier(p) ==
  /\ IsUpToDate(p) \/ Bug = "no_barrier"
  /\ \E i \in 1..Len(hand[p]) : ~hand[p][i].fresh
  /\ hand' = [hand EXCEPT ![p] = [i \in 1..Len(@) |-> [m |-> @[i].m, fresh |-> TRUE]]]
  /\ UNCHANGED <<main, owner, stream, sowner, log, seen, phase, claim, tail, under, shand, acks, sacks,
                 done, ghosts, ended, fails, faults>>

(* ------------------------------------ messages of the topic ---------------------------------- *)

Goes(p, to) == phase' = [phase EXCEPT ![p] = to]
Unstream == UNCHANGED <<main, owner, sowner, shand, sacks, done, ghosts>>
Pop(p) ==
  /\ acks' = [acks EXCEPT ![p] = @ \cup {First(p)}]
  /\ hand' = [hand EXCEPT ![p] = Tail(@)]
  /\ Goes(p, "wait")

(* A message of a held key is diverted, any other is handled. *)
Begin(p) ==
  /\ phase[p] = "wait" /\ hand[p] /= <<>> /\ hand[p][1].fresh
  /\ Goes(p, IF ~IsHeld(p) THEN "handle" ELSE IF IsMine(p) \/ Bug = "no_own_claim"
                                                THEN "publish" ELSE "claim")
  /\ Unstream /\ UNCHANGED <<stream, log, seen, hand, claim, tail, under, acks, ended, fails, faults>>
Succeed(p) ==
  /\ phase[p] = "handle"
  /\ ended' = ended \cup {First(p)}
  /\ Pop(p)
  /\ Unstream /\ UNCHANGED <<stream, log, seen, claim, tail, under, fails, faults>>
Fail(p) ==
  /\ phase[p] = "handle" /\ fails < MaxFails
  /\ fails' = fails + 1
  /\ Goes(p, IF IsMine(p) \/ Bug = "no_claim" THEN "publish" ELSE "claim")
  /\ Unstream /\ UNCHANGED <<stream, log, seen, hand, claim, tail, under, acks, ended, faults>>

(* The claim is stored, and the process waits until it has read it. *)
Claim(p) ==
  /\ phase[p] = "claim" /\ Len(log) < MaxLog
  /\ log' = Append(log, [is |-> "claim"])
  /\ claim' = [claim EXCEPT ![p] = Len(log) + 1]
  /\ tail' = [tail EXCEPT ![p] = 0]
  /\ Goes(p, "claimed")
  /\ Unstream /\ UNCHANGED <<stream, seen, hand, under, acks, ended, fails, faults>>
Claimed(p) ==
  /\ phase[p] = "claimed" /\ seen[p] >= claim[p]
  /\ Goes(p, "publish")
  /\ Unstream /\ UNCHANGED <<stream, log, seen, hand, claim, tail, under, acks, ended, fails, faults>>

(* The message is stored in the stream, and its receipt arrives.  If the claim is still the newest,
   the message is acknowledged.  Otherwise somebody might release it who has not seen this entry;
   but nobody can do that with a claim that is made now. *)
Publish(p) ==
  /\ phase[p] \in {"publish", "publish again"} /\ Len(stream) < MaxStream
  /\ stream' = Append(stream, [m |-> First(p), at |-> "stored"])
  /\ tail' = [tail EXCEPT ![p] = IF phase[p] = "publish again" THEN @ ELSE Len(stream) + 1]
  /\ under' = [under EXCEPT ![p] = claim[p]]
  /\ Goes(p, "sent")
  /\ Unstream /\ UNCHANGED <<log, seen, hand, claim, acks, ended, fails, faults>>
(* Its connection is gone, and the broker delivers the message again: it needs not be published. *)
LetGo(p) ==
  /\ phase[p] = "publish" /\ main[First(p)] /= p
  /\ hand' = [hand EXCEPT ![p] = Tail(@)]
  /\ Goes(p, "wait")
  /\ Unstream
  /\ UNCHANGED <<stream, log, seen, claim, tail, under, acks, ended, fails, faults>>
Receipt(p) ==
  /\ phase[p] = "sent"
  /\ Goes(p, "confirm")
  /\ Unstream /\ UNCHANGED <<stream, log, seen, hand, claim, tail, under, acks, ended, fails, faults>>
Confirm(p) ==
  /\ phase[p] = "confirm"
  /\ IF Bug \in {"no_confirm", "no_own_claim", "no_claim"}
       THEN Pop(p)
       ELSE /\ IsUpToDate(p)
            /\ IF IsMine(p) THEN Pop(p) ELSE Goes(p, "claim again") /\ UNCHANGED <<hand, acks>>
  /\ Unstream /\ UNCHANGED <<stream, log, seen, claim, tail, under, ended, fails, faults>>
ClaimAgain(p) ==
  /\ phase[p] = "claim again" /\ Len(log) < MaxLog
  /\ log' = Append(log, [is |-> "claim"])
  /\ claim' = [claim EXCEPT ![p] = Len(log) + 1]
  /\ Pop(p)
  /\ Unstream /\ UNCHANGED <<stream, seen, tail, under, ended, fails, faults>>

(* Everything that the process has published is reported as ended, and nobody has a newer claim. *)
Release(p) ==
  /\ claim[p] /= 0 /\ tail[p] /= 0 /\ phase[p] \in {"wait", "handle"}
  /\ IsMine(p) /\ (done >= tail[p] \/ (Bug = "early_release" /\ done > 0))
  /\ Len(log) < MaxLog
  /\ log' = Append(log, [is |-> "release", claim |-> claim[p],
                         upto |-> CASE Bug = "release_all" -> Len(log)
                                    [] Bug = "release_older" -> claim[p]
                                    [] OTHER -> under[p]])
  /\ claim' = [claim EXCEPT ![p] = 0]
  /\ tail' = [tail EXCEPT ![p] = 0]
  /\ under' = [under EXCEPT ![p] = 0]
  /\ Unstream /\ UNCHANGED <<stream, seen, hand, phase, acks, ended, fails, faults>>

(* ------------------------------------ entries of the stream ---------------------------------- *)

(* The handler succeeds, or the message is dead-lettered.  Failures change nothing here: the entry
   is tried again before any later one. *)
StreamEnd(p) ==
  LET k == shand[p][1] IN
  /\ k /= 0 /\ ~shand[p][2]
  /\ ended' = ended \cup {stream[k].m}
  /\ shand' = [shand EXCEPT ![p] = <<k, TRUE>>]
  /\ IF StreamIsSafe
       THEN stream' = [stream EXCEPT ![k].at = "acked"] /\ UNCHANGED sacks
       ELSE sacks' = [sacks EXCEPT ![p] = @ \cup {k}] /\ UNCHANGED stream
  /\ UNCHANGED <<main, owner, sowner, log, seen, hand, phase, claim, tail, under, acks, done,
                 ghosts, fails, faults>>
(* The process reports the end, unless it has a later entry in hand. *)
Report(p) ==
  LET k == shand[p][1] IN
  /\ k /= 0 /\ (shand[p][2] \/ Bug = "early_report")
  /\ \/ done' = Max(done, k)
     \/ k < Len(stream) /\ done' = done
  /\ shand' = IF shand[p][2] THEN [shand EXCEPT ![p] = <<0, FALSE>>] ELSE shand
  /\ UNCHANGED <<main, owner, stream, sowner, log, seen, hand, phase, claim, tail, under, acks, sacks,
                 ghosts, ended, fails, faults>>

(* ------------------------------------ faults ------------------------------------------------- *)

(* A consumer joins or leaves: the two topics choose their owners independently. *)
Move ==
  /\ Fault("move")
  /\ \/ owner' \in Procs \ {owner} /\ UNCHANGED sowner
     \/ sowner' \in Procs \ {sowner} /\ UNCHANGED owner
  /\ UNCHANGED <<main, stream, log, seen, hand, phase, claim, tail, under, shand, acks, sacks, done,
                 ghosts, ended, fails>>

BackOf(p) == [m \in Messages |-> IF main[m] = p THEN "stored" ELSE main[m]]
StreamBackOf(p) ==
  [k \in 1..Len(stream) |->
     IF stream[k].at = p THEN [stream[k] EXCEPT !.at = "stored"] ELSE stream[k]]
(* kill -9: another process may get the key.  What was sent may still arrive, later. *)
Kill(p) ==
  /\ hand[p] /= <<>> \/ shand[p][1] /= 0 \/ acks[p] /= {} \/ sacks[p] /= {} \/ claim[p] /= 0
  /\ Fault("kill")
  /\ main' = BackOf(p) /\ stream' = StreamBackOf(p)
  /\ owner' \in Procs /\ sowner' \in Procs
  /\ ghosts' \in {ghosts,
       ghosts \cup (IF phase[p] \in {"publish", "publish again"} THEN {First(p)}
                    ELSE IF phase[p] \in {"claim", "claim again"} THEN {0} ELSE {})}
  /\ seen' = [seen EXCEPT ![p] = 0]
  /\ hand' = [hand EXCEPT ![p] = <<>>]
  /\ phase' = [phase EXCEPT ![p] = "wait"]
  /\ claim' = [claim EXCEPT ![p] = 0] /\ tail' = [tail EXCEPT ![p] = 0]
  /\ under' = [under EXCEPT ![p] = 0]
  /\ shand' = [shand EXCEPT ![p] = <<0, FALSE>>]
  /\ acks' = [acks EXCEPT ![p] = {}] /\ sacks' = [sacks EXCEPT ![p] = {}]
  /\ UNCHANGED <<log, done, ended, fails>>
Arrives ==
  /\ \E g \in ghosts :
       /\ ghosts' = ghosts \ {g}
       /\ IF g = 0
            THEN /\ Len(log) < MaxLog
                 /\ log' = Append(log, [is |-> "claim"])
                 /\ UNCHANGED stream
            ELSE /\ Len(stream) < MaxStream
                 /\ stream' = Append(stream, [m |-> g, at |-> "stored"])
                 /\ UNCHANGED log
  /\ UNCHANGED <<main, owner, sowner, seen, hand, phase, claim, tail, under, shand, acks, sacks, done,
                 ended, fails, faults>>

(* A connection breaks, or a topic is unloaded: the broker delivers again what the process still
   works on, perhaps to another one. *)
Cut(p) ==
  /\ \/ /\ \E m \in Messages : main[m] = p
        /\ Fault("cut")
        /\ main' = BackOf(p) /\ owner' \in Procs /\ UNCHANGED <<stream, sowner>>
     \/ /\ \E k \in 1..Len(stream) : stream[k].at = p
        /\ Fault("cut stream")
        /\ stream' = StreamBackOf(p) /\ sowner' \in Procs /\ UNCHANGED <<main, owner>>
  /\ UNCHANGED <<log, seen, hand, phase, claim, tail, under, shand, acks, sacks, done, ghosts,
                 ended, fails>>
(* The receipt is lost, and the message is published again. *)
Again(p) ==
  /\ phase[p] = "sent" /\ Fault("lose")
  /\ Goes(p, "publish again")
  /\ Unstream /\ UNCHANGED <<stream, log, seen, hand, claim, tail, under, acks, ended, fails>>
(* The claim is stored, but its receipt is lost. *)
ClaimLost(p) ==
  /\ phase[p] \in {"claim", "claim again"} /\ Len(log) < MaxLog /\ Fault("lose")
  /\ log' = Append(log, [is |-> "claim"])
  /\ Unstream /\ UNCHANGED <<stream, seen, hand, phase, claim, tail, under, acks, ended, fails>>

(* ------------------------------------ behaviours --------------------------------------------- *)

Step(p) ==
  \/ Deliver(p) \/ StreamDeliver(p) \/ Flush(p) \/ Read(p) \/ Barrier(p) \/ Begin(p) \/ Succeed(p)
  \/ Claim(p) \/ ClaimAgain(p) \/ Claimed(p) \/ Publish(p) \/ Receipt(p) \/ Confirm(p) \/ Release(p)
  \/ StreamEnd(p) \/ Report(p)
Next ==
  \/ \E p \in Procs : Step(p) \/ Fail(p) \/ LetGo(p) \/ Kill(p) \/ Cut(p) \/ Again(p) \/ ClaimLost(p)
  \/ Move \/ Arrives

(* Something that can go on does so in the end.  Faults need not happen, handlers need not fail. *)
Fairness == WF_vars(\E p \in Procs : Step(p))
Spec == Init /\ [][Next]_vars /\ Fairness

(* ------------------------------------ what holds --------------------------------------------- *)

(* No message ends before an earlier one. *)
NoInversion == \E m \in 0..Last : ended = 1..m
(* A message that has not ended has a copy: in the topic or in the stream. *)
NoLoss ==
  \A m \in Messages \ ended :
    \/ main[m] /= "acked"
    \/ \E k \in 1..Len(stream) : stream[k].m = m /\ stream[k].at /= "acked"
(* A message that is only in the stream is behind a claim that everybody sees in time. *)
IsCovered ==
  \A m \in Messages \ ended : main[m] = "acked" => Live(Len(log)) /= {}
(* A process holds a constant number of messages, however long the key is held. *)
IsBounded == \A p \in Procs : Len(hand[p]) <= MaxHand
(* The bounds of the state space cut nothing off. *)
HasRoom == Len(stream) < MaxStream /\ Len(log) < MaxLog

Ends == <>[](ended = Messages)
Frees == <>[](\A m \in Messages : main[m] = "acked")

Symmetry == Permutations(Procs)
=============================================================================
