----------------------------- MODULE LanesTrace -----------------------------
(* Are the traces of real runs behaviours of Lanes?  A trace has what was observed of one key, in
   order.  Before each event, this module takes the steps that nobody observes, and only those that
   the event needs.  support/model/lanes.py makes the traces; docs/protocol.md explains it. *)
EXTENDS Lanes, LanesTraceData \* Traces: each a sequence of events

VARIABLES t, i  \* the trace, and the place of its next event

Trace == Traces[t]
MinOf(S) == CHOOSE x \in S : \A y \in S : x <= y

(* ------------------------------- steps that nobody observes ---------------------------------- *)

(* The receipt of what the process has published arrives, and it looks at the log again. *)
Settle(p) ==
  CASE phase[p] = "sent" -> Receipt(p)
    [] phase[p] = "confirm" -> IF IsUpToDate(p) THEN Confirm(p) ELSE Read(p)
    [] OTHER -> FALSE
(* Message *x* ends for the broker, or *k* does. *)
FlushOf(q, x) == Flush(q) /\ main'[x] = "acked"
StreamFlushOf(q, k) == Flush(q) /\ stream'[k].at = "acked"
Acknowledged(x) ==
  IF \E q \in Procs : x \in acks[q] THEN \E q \in Procs : FlushOf(q, x)
  ELSE LET q == main[x] IN hand[q] /= <<>> /\ First(q) = x /\ Settle(q)
(* The process drops what it has claimed, because another one has got it. *)
Drop(p) ==
  IF phase[p] = "claimed" THEN IF seen[p] >= claim[p] THEN Claimed(p) ELSE Read(p) ELSE LetGo(p)
ReportOf(p) == shand[p][2] /\ Report(p) /\ done' = Max(done, shand[p][1])

(* The process gets message *m*: all earlier ones are acknowledged, no later one is.  The broker also
   accepts an acknowledgement of a process that has lost the message meanwhile. *)
Fetch(p, m) ==
  LET from == IF main[m] = p THEN Procs ELSE Procs \ {p}
      before == {x \in 1..(m - 1) : \/ main[x] \in from
                                    \/ main[x] = "stored" /\ \E q \in Procs : x \in acks[q]}
      others == {x \in Messages : main[x] \in Procs \ {p}} IN
  CASE before /= {} -> Acknowledged(MinOf(before))
    [] others /= {} -> Cut(main[MinOf(others)]) /\ stream' = stream /\ owner' = p
    [] main[m] = p -> Cut(p) /\ stream' = stream /\ owner' = p
    [] owner /= p -> Move /\ owner' = p
    [] OTHER -> Deliver(p)
Topic(p, m) ==
  CASE hand[p] = <<>> -> Fetch(p, m)
    [] First(p) = m /\ ~hand[p][1].fresh -> IF IsUpToDate(p) THEN Barrier(p) ELSE Read(p)
    [] OTHER -> FALSE
IsReady(p, m) == phase[p] = "wait" /\ hand[p] /= <<>> /\ First(p) = m /\ hand[p][1].fresh

(* The process gets entry *k* of the stream. *)
StreamFetch(p, k) ==
  LET from == IF stream[k].at = p THEN Procs ELSE Procs \ {p}
      before == {x \in 1..(k - 1) :
                   \/ stream[x].at \in from
                   \/ stream[x].at = "stored" /\ \E q \in Procs : x \in sacks[q]}
      others == {x \in 1..Len(stream) : stream[x].at \in Procs \ {p}} IN
  CASE before /= {} -> \E q \in Procs : StreamFlushOf(q, MinOf(before))
    [] others /= {} -> Cut(stream[MinOf(others)].at) /\ main' = main /\ sowner' = p
    [] stream[k].at = p -> Cut(p) /\ main' = main /\ sowner' = p
    [] sowner /= p -> Move /\ sowner' = p
    [] OTHER -> StreamDeliver(p)

Hidden(e) ==
  LET p == e.p IN
  CASE e.kind = "begin" ->
         CASE phase[p] \in {"sent", "confirm"} -> Settle(p)
           [] phase[p] \in {"claimed", "publish"} -> Drop(p)
           [] OTHER -> Topic(p, e.m)
    [] e.kind = "claim" ->
         CASE phase[p] \in {"sent", "confirm"} -> Settle(p)
           [] IsReady(p, e.m) -> Begin(p) /\ phase'[p] = "claim"
           [] phase[p] = "wait" -> Topic(p, e.m)
           [] OTHER -> phase[p] \in {"claimed", "publish"} /\ Drop(p)
    [] e.kind = "entry" ->
         CASE phase[p] \in {"claimed", "publish"} -> Drop(p)
           [] phase[p] = "sent" /\ e.flag -> Again(p)
           [] phase[p] \in {"sent", "confirm"} -> Settle(p)
           [] IsReady(p, e.m) -> Begin(p) /\ phase'[p] = "publish"
           [] phase[p] = "wait" -> Topic(p, e.m)
           [] OTHER -> FALSE
    [] e.kind = "release" ->
         CASE phase[p] \in {"sent", "confirm"} -> Settle(p)
           [] \E q \in Procs : shand[q][2] -> \E q \in Procs : ReportOf(q)
           [] OTHER -> seen[p] < claim[p] /\ Read(p)
    [] e.kind = "end" ->
         CASE shand[p][2] -> ReportOf(p)
           [] shand[p][1] /= 0 -> stream[shand[p][1]].m \in ended /\ StreamEnd(p)
           [] OTHER -> StreamFetch(p, e.k)
    [] e.kind = "gone" ->
         LET x == {m \in Messages : m < e.m /\ main[m] = p}
             y == {k \in 1..Len(stream) : k < e.k /\ stream[k].at = p} IN
         CASE shand[p][2] -> ReportOf(p)
           [] x /= {} -> Acknowledged(MinOf(x))
           [] y /= {} -> StreamFlushOf(p, MinOf(y))
           [] OTHER -> FALSE
    [] OTHER -> FALSE

(* ------------------------------------ events ------------------------------------------------- *)

IsDue(e) ==
  LET p == e.p IN
  CASE e.kind = "begin" -> IsReady(p, e.m)
    [] e.kind \in {"ok", "fail"} -> phase[p] = "handle" /\ First(p) = e.m
    [] e.kind = "claim" -> phase[p] \in {"claim", "claim again"}
    [] e.kind = "entry" -> phase[p] \in {"publish", "publish again"} /\ First(p) = e.m
    [] e.kind = "release" -> ENABLED Release(p)
    [] e.kind = "end" -> shand[p] = <<e.k, FALSE>>
    [] e.kind = "gone" -> ~ENABLED Hidden(e)
    [] OTHER -> TRUE
Take(e) ==
  LET p == e.p IN
  CASE e.kind = "begin" -> Begin(p) /\ phase'[p] = "handle"
    [] e.kind = "ok" -> Succeed(p)
    [] e.kind = "fail" -> Fail(p)
    [] e.kind = "claim" -> Claim(p) \/ ClaimAgain(p)
    [] e.kind = "entry" -> Publish(p)
    [] e.kind = "release" -> Release(p) /\ e.flag = (Live(Len(log))' = {})
    [] e.kind = "end" -> StreamEnd(p)
    [] e.kind = "gone" ->
         IF ENABLED Kill(p) THEN Kill(p) /\ owner' = owner /\ sowner' = sowner /\ ghosts' = ghosts ELSE UNCHANGED vars
    [] e.kind = "over" -> ended = 1..e.m /\ UNCHANGED vars

TraceInit == Init /\ owner = "p1" /\ sowner = "p1" /\ t \in 1..Len(Traces) /\ i = 1
TraceNext ==
  /\ i <= Len(Trace) /\ t' = t
  /\ \/ IF IsDue(Trace[i]) THEN Take(Trace[i]) /\ i' = i + 1 ELSE Hidden(Trace[i]) /\ i' = i
     \* Another process may have looked at the log before it grew.
     \/ /\ Trace[i].kind \in {"claim", "release"} /\ i' = i
        /\ \E q \in Procs \ {Trace[i].p} : Settle(q)
  /\ (NoInversion /\ NoLoss /\ IsCovered)'

(* How far each trace was followed. *)
Progress == PrintT(<<"at", t, i>>)
=============================================================================
