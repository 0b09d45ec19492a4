------------------------------- MODULE Claims -------------------------------
(* The claims of the processes of one subscription: which messages had a process in hand when it
   died, which of them are suspects, and when one of them is condemned.

   docs/crashes.md explains the variables, actions, bounds and invariants. *)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS
  Procs,        \* processes of the subscription; one that dies is replaced by another of its name
  Msgs,         \* the messages
  Poison,       \* those of them that kill the process whose handler gets them
  MaxCrashes,   \* N: crashes that condemn a message
  MaxKills,     \* bound: kills of processes from outside
  MaxCuts,      \* bound: connections that are lost, while the process lives
  MaxAgains,    \* bound: messages that come again after they have ended, as a part of a batch does
  Whole,        \* whether a record has all that a process has received, or any part of it
  Bug           \* a planted error: "none", or the name of one

None == "-"
NoRecord == [hand |-> {}, alone |-> None]

VARIABLES
  at,       \* by message: "stored", "acked", "dead", or the process that the broker delivered it to
  has,      \* by process: the messages that it has received and not settled
  running,  \* by process: those of them that are in a handler
  alone,    \* by process: the suspect that it handles alone, until that is over for all readers
  rec,      \* by process: its last record in the topic
  clear,    \* by process: the messages that were no suspects when that record was read back
  turns,    \* the processes that want to handle a suspect, in the order of the topic
  cut,      \* living processes without a connection
  graves,   \* the last records of processes that have died
  settled,  \* which claims of the dead are settled: pairs of a grave's number and a message
  crashes,  \* by message: how many processes died while it ran
  unlucky,  \* messages that ran alone in a process that was killed from outside
  kills, cuts, agains

vars == <<at, has, running, alone, rec, clear, turns, cut, graves, settled, crashes, unlucky,
          kills, cuts, agains>>

Init ==
  /\ at = [m \in Msgs |-> "stored"]
  /\ has = [p \in Procs |-> {}]
  /\ running = [p \in Procs |-> {}]
  /\ alone = [p \in Procs |-> None]
  /\ rec = [p \in Procs |-> NoRecord]
  /\ clear = [p \in Procs |-> {}]
  /\ turns = <<>>
  /\ cut = {}
  /\ graves = {}
  /\ settled = {}
  /\ crashes = [m \in Msgs |-> 0]
  /\ unlucky = {}
  /\ kills = 0
  /\ cuts = 0
  /\ agains = 0

(* What a record accuses: while a suspect is handled alone, nothing else can be the cause. *)
Accused(r) == IF r.alone /= None THEN {r.alone} ELSE r.hand
Dead(m) == {g \in graves : m \in Accused(g.rec) /\ <<g.number, m>> \notin settled}
(* A process without a connection looks like a dead one at first. *)
Gone(p, m) == {q \in cut \ {p} : m \in Accused(rec[q])}
Count(p, m) == Cardinality(Dead(m)) + Cardinality(Gone(p, m))
IsSuspect(p, m) == Count(p, m) >= MaxCrashes - 1

(* A message is condemned only by processes that are certainly dead: those that had the time to
   connect again and did not.  And only if one of them handled it alone. *)
IsCondemned(p, m) ==
  /\ IF Bug = "hasty" THEN Count(p, m) >= MaxCrashes ELSE Cardinality(Dead(m)) >= MaxCrashes
  /\ \/ \E g \in Dead(m) : g.rec.alone = m
     \/ Bug = "hasty" /\ \E q \in Gone(p, m) : rec[q].alone = m
     \/ Bug = "no_alone"

ClaimsOn(m) == {<<g.number, m>> : g \in Dead(m)}
Without(p) == SelectSeq(turns, LAMBDA q : q /= p)
Place(p) == CHOOSE k \in 1..Len(turns) : turns[k] = p
HasTurn(p) == \E k \in 1..Len(turns) : turns[k] = p
IsFirst(p) == \A k \in 1..(Place(p) - 1) : turns[k] \in cut
IsConnected(p) == p \notin cut

(* ------------------------------- messages and records --------------------------------------- *)

Deliver(p, m) ==
  /\ IsConnected(p)
  /\ at[m] = "stored"
  /\ at' = [at EXCEPT ![m] = p]
  /\ has' = [has EXCEPT ![p] = @ \cup {m}]
  /\ UNCHANGED <<running, alone, rec, clear, turns, cut, graves, settled, crashes, unlucky, kills,
                 cuts, agains>>

(* The process publishes what it has in hand: all that run, and more that are to run soon.  When it
   has read this record back, it knows all records before it. *)
Able(p, S) == {m \in S : ~IsSuspect(p, m)}
CommitOf(p, S) ==
  /\ IsConnected(p)
  /\ alone[p] = None
  /\ running[p] \subseteq S
  /\ Whole => S = has[p]
  /\ rec' = [rec EXCEPT ![p] = [hand |-> S, alone |-> None]]
  /\ clear' = [clear EXCEPT ![p] = Able(p, S)]
  /\ rec'[p] /= rec[p] \/ Able(p, S) /= clear[p]
  /\ UNCHANGED <<at, has, running, alone, turns, cut, graves, settled, crashes, unlucky, kills,
                 cuts, agains>>

Commit(p) == \E S \in SUBSET has[p] : CommitOf(p, S)

Start(p, m) ==
  /\ m \in has[p] \ running[p]
  /\ alone[p] = None
  /\ m \in clear[p] \/ Bug = "no_claim"
  /\ running' = [running EXCEPT ![p] = @ \cup {m}]
  /\ UNCHANGED <<at, has, alone, rec, clear, turns, cut, graves, settled, crashes, unlucky, kills,
                 cuts, agains>>

(* The claims of the dead are settled soon after.  Those of S are; the others stay, as if the process
   has died before. *)
FinishWith(p, m, S) ==
  /\ m \in running[p] \ Poison
  /\ running' = [running EXCEPT ![p] = @ \ {m}]
  /\ has' = [has EXCEPT ![p] = @ \ {m}]
  /\ at' = IF at[m] = p THEN [at EXCEPT ![m] = "acked"] ELSE at
  /\ settled' = settled \cup S
  /\ IF Bug = "late_leave" /\ alone[p] = m
       THEN /\ alone' = [alone EXCEPT ![p] = None]
            /\ turns' = Without(p)
            /\ clear' = [clear EXCEPT ![p] = {n \in has[p] : ~IsSuspect(p, n)}]
       ELSE UNCHANGED <<alone, turns, clear>>
  /\ UNCHANGED <<rec, cut, graves, crashes, unlucky, kills, cuts, agains>>

Finish(p, m) == \E S \in SUBSET ClaimsOn(m) : FinishWith(p, m, S)

(* ------------------------------------- suspects --------------------------------------------- *)

AskTurn(p, m) ==
  /\ IsConnected(p)
  /\ m \in has[p] \ running[p]
  /\ IsSuspect(p, m)
  /\ ~IsCondemned(p, m)
  /\ ~HasTurn(p)
  /\ turns' = Append(turns, p)
  /\ UNCHANGED <<at, has, running, alone, rec, clear, cut, graves, settled, crashes, unlucky, kills,
                 cuts, agains>>

(* All other handlers of the process have ended; no other begins before `Leave`. *)
Isolate(p, m) ==
  /\ IsConnected(p)
  /\ m \in has[p] \ running[p]
  /\ IsSuspect(p, m)
  /\ ~IsCondemned(p, m)
  /\ HasTurn(p) /\ IsFirst(p)
  /\ running[p] = {}
  /\ alone[p] = None
  /\ alone' = [alone EXCEPT ![p] = m]
  /\ rec' = [rec EXCEPT ![p] = [hand |-> {m}, alone |-> m]]
  /\ clear' = [clear EXCEPT ![p] = {}]
  /\ UNCHANGED <<at, has, running, turns, cut, graves, settled, crashes, unlucky, kills, cuts,
                 agains>>

StartAlone(p, m) ==
  /\ m = alone[p]
  /\ m \in has[p] \ running[p]
  /\ running' = [running EXCEPT ![p] = {m}]
  /\ UNCHANGED <<at, has, alone, rec, clear, turns, cut, graves, settled, crashes, unlucky, kills,
                 cuts, agains>>

(* The record says that no suspect is handled alone any more; only then others may start. *)
Leave(p) ==
  /\ IsConnected(p)
  /\ alone[p] /= None
  /\ alone[p] \notin has[p]
  /\ alone' = [alone EXCEPT ![p] = None]
  /\ rec' = [rec EXCEPT ![p] = NoRecord]
  /\ turns' = Without(p)
  /\ UNCHANGED <<at, has, running, clear, cut, graves, settled, crashes, unlucky, kills, cuts,
                 agains>>

(* A turn is given back if there is nothing left to do with it. *)
GiveBack(p) ==
  /\ HasTurn(p)
  /\ alone[p] = None
  /\ \A m \in has[p] \ running[p] : ~IsSuspect(p, m) \/ IsCondemned(p, m)
  /\ turns' = Without(p)
  /\ UNCHANGED <<at, has, running, alone, rec, clear, cut, graves, settled, crashes, unlucky, kills,
                 cuts, agains>>

(* The claims stay: if the message comes again, it is condemned at once. *)
Condemn(p, m) ==
  /\ IsConnected(p)
  /\ m \in has[p] \ running[p]
  /\ m /= alone[p]
  /\ IsCondemned(p, m)
  /\ at[m] = p
  /\ at' = [at EXCEPT ![m] = "dead"]
  /\ has' = [has EXCEPT ![p] = @ \ {m}]
  /\ IF Bug = "forgets" THEN settled' = settled \cup ClaimsOn(m) ELSE UNCHANGED settled
  /\ UNCHANGED <<running, alone, rec, clear, turns, cut, graves, crashes, unlucky, kills, cuts,
                 agains>>

(* -------------------------------------- faults ---------------------------------------------- *)

Die(p) ==
  /\ graves' = graves \cup {[number |-> Cardinality(graves), rec |-> rec[p]]}
  /\ at' = [m \in Msgs |-> IF at[m] = p THEN "stored" ELSE at[m]]
  /\ has' = [has EXCEPT ![p] = {}]
  /\ running' = [running EXCEPT ![p] = {}]
  /\ alone' = [alone EXCEPT ![p] = None]
  /\ rec' = [rec EXCEPT ![p] = NoRecord]
  /\ clear' = [clear EXCEPT ![p] = {}]
  /\ turns' = Without(p)
  /\ cut' = cut \ {p}
  /\ UNCHANGED <<settled, cuts, agains>>

Crash(p) ==
  /\ running[p] \cap Poison /= {}
  /\ Die(p)
  /\ crashes' = [m \in Msgs |-> crashes[m] + (IF m \in running[p] THEN 1 ELSE 0)]
  /\ UNCHANGED <<unlucky, kills,
                 agains>>

Kill(p) ==
  /\ kills < MaxKills
  /\ kills' = kills + 1
  /\ Die(p)
  /\ unlucky' = unlucky \cup (IF alone[p] /= None THEN {alone[p]} ELSE {})
  /\ UNCHANGED crashes

(* The broker takes back what was delivered; a handler that runs goes on. *)
Cut(p) ==
  /\ cuts < MaxCuts
  /\ IsConnected(p)
  /\ cuts' = cuts + 1
  /\ cut' = cut \cup {p}
  /\ at' = [m \in Msgs |-> IF at[m] = p THEN "stored" ELSE at[m]]
  /\ has' = [has EXCEPT ![p] = running[p] \cup ({alone[p]} \cap Msgs \cap has[p])]
  /\ UNCHANGED <<running, alone, rec, clear, turns, graves, settled, crashes, unlucky, kills,
                 agains>>

Reconnect(p) ==
  /\ p \in cut
  /\ cut' = cut \ {p}
  /\ UNCHANGED <<at, has, running, alone, rec, clear, turns, graves, settled, crashes, unlucky,
                 kills, cuts, agains>>

(* The broker delivers a message although it has ended: its acknowledgement was lost, or the whole
   batch comes again. *)
Again(m) ==
  /\ agains < MaxAgains
  /\ at[m] \in {"acked", "dead"}
  /\ agains' = agains + 1
  /\ at' = [at EXCEPT ![m] = "stored"]
  /\ UNCHANGED <<has, running, alone, rec, clear, turns, cut, graves, settled, crashes, unlucky,
                 kills, cuts>>

(* ------------------------------------------------------------------------------------------- *)

Steps(p) ==
  \/ Commit(p) \/ Leave(p) \/ GiveBack(p) \/ Crash(p) \/ Reconnect(p)
  \/ \E m \in Msgs :
       Deliver(p, m) \/ Start(p, m) \/ Finish(p, m) \/ AskTurn(p, m) \/ Isolate(p, m)
       \/ StartAlone(p, m) \/ Condemn(p, m)

Next ==
  \/ \E p \in Procs : Steps(p) \/ Kill(p) \/ Cut(p)
  \/ \E m \in Msgs : Again(m)

Spec == Init /\ [][Next]_vars /\ WF_vars(\E p \in Procs : Steps(p))

(* ------------------------------------ what is promised -------------------------------------- *)

(* An innocent message is dead-lettered only if its process was killed from outside while it was
   the only message in hand. *)
InnocentsLive == \A m \in Msgs \ Poison : at[m] = "dead" => m \in unlucky

(* A message that kills its process does so N times.  Each lost connection can add one: the process
   that lost it still handles the message. *)
AtMostN == \A m \in Poison : crashes[m] <= MaxCrashes + cuts

(* Without other reasons to die, it is exactly N times. *)
ExactlyN ==
  Cardinality(Poison) = 1 /\ kills = 0 /\ cuts = 0 =>
    \A m \in Poison : at[m] = "dead" => crashes[m] = MaxCrashes

(* Nothing is lost: what has not ended is stored, or delivered to a process that has it. *)
NothingIsLost == \A m \in Msgs : at[m] \in Procs => m \in has[at[m]]
PoisonIsNotAcked == \A m \in Poison : at[m] /= "acked"

(* Of all processes with a connection, one at most handles a suspect. *)
OneSuspect ==
  Cardinality({p \in Procs \ cut : alone[p] \in running[p]}) <= 1 \/ cuts > 0

AloneIsAlone == \A p \in Procs : alone[p] /= None => running[p] \subseteq {alone[p]}

Ends == <>[](\A m \in Msgs : at[m] \in {"acked", "dead"})
=============================================================================
