// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second primary that gets the same events at the same times, and reads the same values: its
//! effects, its accesses to the memory and its whole state are compared after each event. A primary
//! that is replicated by its events would rely on that.

use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::collections::VecDeque;
use std::fmt::{self, Debug, Write};
use std::hash::Hasher;

use dlock_core::counters::Told;
use dlock_core::ids::{ClientId, Handle};
use dlock_core::membership::MemberMemory;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, WordAddr};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::primary::{Effect, Event, Primary};

use super::server::World;
use super::state::Sys;

pub(crate) struct Twin {
    pub(super) primary: Primary,
}

impl Twin {
    pub fn of(primary: Primary) -> Self {
        Self { primary }
    }
}

impl World {
    /// Passes an event to the primary, and to its twin.
    pub(super) fn tells(&mut self, event: Event) {
        let now = self.sys.server_now();
        let Some(primary) = &mut self.primary else { return };
        let Some(twin) = &mut self.twin else {
            return primary.handle(now, &mut self.sys, event);
        };
        let mut first = First { sys: &mut self.sys, calls: RefCell::default() };
        primary.handle(now, &mut first, event.clone());
        let mut second = Second { calls: first.calls };
        twin.primary.handle(now, &mut second, event.clone());
        let left = second.calls.borrow().len();
        if left > 0 || state(primary) != state(&twin.primary) {
            self.sys.fail(format!("twin: {event:?} is handled in two ways"));
        }
    }

    /// The next effect of the primary.
    pub(super) fn polled(&mut self) -> Option<Effect> {
        let effect = self.primary.as_mut()?.poll();
        if let Some(twin) = &mut self.twin {
            let other = twin.primary.poll();
            if effect != other {
                self.sys.fail(format!("twin: {effect:?} is wanted, and {other:?}"));
            }
        }
        effect
    }
}

/// A hash of the whole state of a primary.
fn state(primary: &Primary) -> u64 {
    struct Sum(DefaultHasher);
    impl Write for Sum {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut sum = Sum(DefaultHasher::new());
    write!(sum, "{primary:?}").expect("a sum takes everything");
    sum.0.finish()
}

/// An access to the memory, and its result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Cas(WordAddr, u64, u64),
    Faa(WordAddr, u64),
    Read(WordAddr),
    Set(WordAddr, u64),
    Wake(WordAddr),
    Ledger(ClientId, Handle),
    SetLedger(ClientId, Handle, LedgerEntry),
    Told(ClientId),
    IsMapped(ClientId),
    Chain(ClientId, Chain),
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Word(u64),
    Told(Told),
    Outcome(Outcome),
}

type Calls = RefCell<VecDeque<(Call, Value)>>;

/// The memory, which records every access of the first primary.
struct First<'a> {
    sys: &'a mut Sys,
    calls: Calls,
}

/// The memory of the second primary: it must make the accesses that the first has made.
struct Second {
    calls: Calls,
}

impl First<'_> {
    fn noted(&mut self, call: Call, act: impl FnOnce(&mut Sys) -> u64) -> u64 {
        let value = act(self.sys);
        self.calls.borrow_mut().push_back((call, Value::Word(value)));
        value
    }
}

impl Second {
    fn value(&self, call: Call) -> Value {
        match self.calls.borrow_mut().pop_front() {
            Some((noted, value)) if noted == call => value,
            noted => panic!("twin: {call:?} where the other asks for {noted:?}"),
        }
    }

    fn word(&self, call: Call) -> u64 {
        match self.value(call) {
            Value::Word(word) => word,
            value => panic!("twin: {call:?} gives {value:?}"),
        }
    }
}

impl LockMemory for First<'_> {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.noted(Call::Cas(addr, expect, swap), |sys| sys.cas(addr, expect, swap))
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.noted(Call::Faa(addr, add), |sys| sys.faa(addr, add))
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.noted(Call::Read(addr), |sys| sys.read(addr))
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.noted(Call::Set(addr, value), |sys| {
            sys.set(addr, value);
            0
        });
    }
    fn wake(&mut self, addr: WordAddr) {
        self.noted(Call::Wake(addr), |sys| {
            sys.wake(addr);
            0
        });
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        let call = Call::Ledger(client, handle);
        LedgerEntry::from_bits(self.noted(call, |sys| sys.ledger(client, handle).into_bits()))
    }
    fn told(&mut self, client: ClientId) -> Told {
        let told = LockMemory::told(self.sys, client);
        self.calls.borrow_mut().push_back((Call::Told(client), Value::Told(told)));
        told
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.noted(Call::SetLedger(client, handle, entry), |sys| {
            sys.set_ledger(client, handle, entry);
            0
        });
    }
}

impl MemberMemory for First<'_> {
    fn is_mapped(&self, client: ClientId) -> bool {
        let is_mapped = self.sys.is_mapped(client);
        let value = Value::Word(is_mapped.into());
        self.calls.borrow_mut().push_back((Call::IsMapped(client), value));
        is_mapped
    }
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        let outcome = self.sys.execute_chain(client, chain);
        self.calls.borrow_mut().push_back((Call::Chain(client, *chain), Value::Outcome(outcome)));
        outcome
    }
}

impl LockMemory for Second {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.word(Call::Cas(addr, expect, swap))
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.word(Call::Faa(addr, add))
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.word(Call::Read(addr))
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.word(Call::Set(addr, value));
    }
    fn wake(&mut self, addr: WordAddr) {
        self.word(Call::Wake(addr));
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        LedgerEntry::from_bits(self.word(Call::Ledger(client, handle)))
    }
    fn told(&mut self, client: ClientId) -> Told {
        match self.value(Call::Told(client)) {
            Value::Told(told) => told,
            value => panic!("twin: counts are {value:?}"),
        }
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.word(Call::SetLedger(client, handle, entry));
    }
}

impl MemberMemory for Second {
    fn is_mapped(&self, client: ClientId) -> bool {
        self.word(Call::IsMapped(client)) != 0
    }
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        match self.value(Call::Chain(client, *chain)) {
            Value::Outcome(outcome) => outcome,
            value => panic!("twin: a chain has {value:?}"),
        }
    }
}
