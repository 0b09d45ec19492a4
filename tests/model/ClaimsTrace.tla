----------------------------- MODULE ClaimsTrace ----------------------------
(* Are the traces of real runs behaviours of Claims?  A trace has the records of all processes, the
   begins and ends of handlers, the crashes and the dead letters, in order.  Before each event, this
   module takes the steps that nobody observes: deliveries, also of messages that have ended.
   support/model/claims.py makes the traces; docs/protocol.md explains it. *)
EXTENDS Claims, ClaimsTraceData, TLC \* Traces: each a sequence of events

VARIABLES t, i  \* the trace, and the place of its next event

Trace == Traces[t]
Get(p, m) == IF at[m] \in {"acked", "dead"} THEN Again(m) ELSE Deliver(p, m)

Take(e) ==
  LET p == e.p IN
  CASE e.kind = "commit" ->
         IF rec[p] = [hand |-> e.hand, alone |-> None] /\ clear[p] = Able(p, e.hand)
           THEN UNCHANGED vars ELSE CommitOf(p, e.hand)
    [] e.kind = "ask" -> \E m \in Msgs : AskTurn(p, m)
    [] e.kind = "alone" -> Isolate(p, e.m)
    [] e.kind = "leave" -> Leave(p)
    [] e.kind = "give" -> GiveBack(p)
    [] e.kind = "began" -> IF alone[p] = e.m THEN StartAlone(p, e.m) ELSE Start(p, e.m)
    [] e.kind = "ended" -> FinishWith(p, e.m, {c \in ClaimsOn(e.m) : c[1] \in e.settles})
    [] e.kind = "dies" -> Crash(p)
    [] e.kind = "dead" -> Condemn(p, e.m)
    [] e.kind = "over" -> (\A m \in Msgs : at[m] \in {"acked", "dead"}) /\ UNCHANGED vars

Missing(e) ==
  (CASE e.kind = "commit" -> e.hand [] e.kind \in {"alone", "dead"} -> {e.m} [] OTHER -> {})
    \ has[e.p]

TraceInit == Init /\ t \in 1..Len(Traces) /\ i = 1
TraceNext ==
  /\ i <= Len(Trace) /\ t' = t
  /\ IF Missing(Trace[i]) = {} THEN Take(Trace[i]) /\ i' = i + 1
       ELSE Get(Trace[i].p, CHOOSE m \in Missing(Trace[i]) : TRUE) /\ i' = i
  /\ (InnocentsLive /\ AtMostN /\ ExactlyN /\ NothingIsLost /\ PoisonIsNotAcked /\ OneSuspect
      /\ AloneIsAlone)'

(* How far each trace was followed. *)
Progress == PrintT(<<"at", t, i>>)
=============================================================================
