// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rights of a client, by the names in its certificate: rules, rights and quotas.
//!
//! ```text
//!   no rule at all ─────────────────────────▶ everything is allowed, nothing is counted
//!   a certificate's names ─▶ rules that name one of them
//!        none ─▶ the client is not let in
//!        some ─▶ a right on a lock or object: one of these rules gives it, and has a prefix of
//!                the name of that lock or object
//!                a quota: the lowest that these rules set
//! ```
//! Names are compared byte by byte; [`ANY_NAME`] matches every certificate. The names are those of
//! the certificate that registered the client. Only certificates of the same names may speak for
//! the client ([`membership`](crate::membership)), so a renewed certificate has the same rights.
//!
//! New rules ([`Access::set_rules`]) apply from each client's next request on. They take away
//! nothing that was granted: a client may release a hold, but not extend it or lock again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::ids::{ClientId, Identity, ObjectId};
use crate::memory::word_op::WordOp;
use crate::memory::words::{RwWord, TakenWord};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode, Request};
use crate::wire::status::Status;

/// The most rules of one primary.
pub const RULES_MAX: usize = 256;
/// The most names of certificates, or prefixes, of one rule.
pub const RULE_ITEMS_MAX: usize = 256;
/// How many refusals are kept for the log until [`Access::take_refusals`].
pub const REFUSALS_MAX: usize = 16;
/// The name in a rule that matches every certificate.
pub const ANY_NAME: &str = "*";

/// Something that a client may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Get locks; contained in the rights to lock.
    Get,
    /// Hold locks in shared mode.
    LockShared,
    /// Hold locks in exclusive mode.
    LockExclusive,
    /// Create, get, read, change and destroy state objects.
    Objects,
    /// Operate the primary over the network.
    Admin,
}

impl Right {
    /// All rights.
    pub const ALL: [Self; 5] =
        [Self::Get, Self::LockShared, Self::LockExclusive, Self::Objects, Self::Admin];

    /// The name of the right in a rule.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::LockShared => "lock-shared",
            Self::LockExclusive => "lock-exclusive",
            Self::Objects => "objects",
            Self::Admin => "admin",
        }
    }

    /// The right with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|right| right.name() == name)
    }

    /// The right to hold a lock in this mode.
    pub fn to_lock(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::LockExclusive,
            Mode::Shared => Self::LockShared,
        }
    }

    /// The right that a request on the command channel needs; `None`: the request gives something
    /// back, or only asks.
    pub fn for_request(request: &Request) -> Option<Self> {
        match *request {
            Request::Wait { mode, .. }
            | Request::Poll { mode, .. }
            | Request::Try { mode, .. }
            | Request::TakeTicket { mode, .. }
            | Request::Steal { mode, .. } => Some(Self::to_lock(mode)),
            Request::Extend { mode, lease, .. } => (!lease.is_none()).then(|| Self::to_lock(mode)),
            Request::Downgrade { .. } => Some(Self::LockShared),
            Request::Cancel { .. }
            | Request::Release { .. }
            | Request::Keep { .. }
            | Request::Wake { .. }
            | Request::Abandon { .. }
            | Request::Resolve { .. }
            | Request::CountReaders { .. }
            | Request::Confirm { .. }
            | Request::Listen { .. }
            | Request::Ping => None,
        }
    }

    /// The right that a word operation on a lock of this type needs; `None`: the operation gives
    /// something back, or only checks whether the client still has its hold (as the release of one
    /// of several entries does).
    pub fn for_word_op(lock_type: LockType, word_op: &WordOp) -> Option<Self> {
        match (lock_type, *word_op) {
            (_, WordOp::Cas { expect, swap, .. }) if expect == swap => None,
            (LockType::Atomic, WordOp::Cas { swap, .. }) => {
                (swap != 0).then_some(Self::LockExclusive)
            }
            (LockType::Rw, WordOp::Cas { swap, .. }) => {
                (RwWord::from_bits(swap).client() != 0).then_some(Self::LockExclusive)
            }
            (LockType::Rw, WordOp::Faa { add, .. }) => (add == 1).then_some(Self::LockShared),
            (LockType::Fair, WordOp::Faa { add: TakenWord::TAKE_SHARED, .. }) => {
                Some(Self::LockShared)
            }
            (LockType::Fair | LockType::Atomic, WordOp::Faa { .. }) => Some(Self::LockExclusive),
            (LockType::Fair, WordOp::Cas { .. }) => None,
            (_, WordOp::Read { .. } | WordOp::ReadPair { .. } | WordOp::WriteLedger { .. }) => None,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// Whether this right is in the set.
    pub fn has(self, right: Right) -> bool {
        self.0 & right.bit() != 0
    }

    /// This set with one more right, and with the rights that this right contains.
    #[must_use]
    pub fn with(self, right: Right) -> Self {
        let contained = match right {
            Right::LockShared | Right::LockExclusive => Right::Get.bit(),
            Right::Get | Right::Objects | Right::Admin => 0,
        };
        Self(self.0 | right.bit() | contained)
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        rights.into_iter().fold(Self::default(), Self::with)
    }
}

/// How much all clients of one identity may have together; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// How many clients there may be at a time.
    pub clients_max: Option<u32>,
    /// How many locks the clients may have got; a lock that two of them have got counts twice.
    pub locks_max: Option<u32>,
    /// How many state objects may exist that the clients have created.
    pub objects_max: Option<u32>,
    /// For how many locks the clients may be queued.
    pub waits_max: Option<u32>,
}

impl Quotas {
    fn lowest(self, other: Self) -> Self {
        let min = |a: Option<u32>, b: Option<u32>| match planted::is(Bug::HighestQuota) {
            true => a.max(b),
            false => a.into_iter().chain(b).min(),
        };
        Self {
            clients_max: min(self.clients_max, other.clients_max),
            locks_max: min(self.locks_max, other.locks_max),
            objects_max: min(self.objects_max, other.objects_max),
            waits_max: min(self.waits_max, other.waits_max),
        }
    }
}

/// A rule: what certificates with one of these names may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The names of certificates to which the rule applies; [`ANY_NAME`]: all.
    pub names: Vec<String>,
    /// Prefixes of the names of locks and objects; the empty prefix matches all.
    pub prefixes: Vec<Vec<u8>>,
    /// The rights on these locks and objects.
    pub rights: Rights,
    /// How much clients with these names may have.
    pub quotas: Quotas,
}

impl Rule {
    fn is_for(&self, names: &[String]) -> bool {
        self.names.iter().any(|name| name == ANY_NAME || names.contains(name))
    }

    fn gives(&self, right: Right, name: &[u8]) -> bool {
        let covers = |prefix: &Vec<u8>| name.starts_with(prefix);
        self.rights.has(right) && self.prefixes.iter().any(covers)
    }

    fn gives_everywhere(&self, right: Right) -> bool {
        self.rights.has(right) && self.prefixes.iter().any(Vec::is_empty)
    }
}

/// Why a client was refused, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No rule gives the right.
    Right {
        /// The missing right.
        right: Right,
        /// The name of the lock or object for which the right is missing.
        name: Vec<u8>,
    },
    /// No rule names the certificate.
    Unnamed,
    /// The identity has reached a quota.
    Quota {
        /// The key of the quota in the rule.
        bound: &'static str,
        /// The value of the quota.
        max: u32,
    },
}

/// A refusal, and the client that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The client; `None`: it was not let in.
    pub client: Option<ClientId>,
    /// The first name in the client's certificate.
    pub peer: String,
    /// The reason.
    pub refused: Refused,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Some(client) => write!(f, "client {client} ({:?}) is refused: ", self.peer)?,
            None => write!(f, "a client ({:?}) is refused: ", self.peer)?,
        }
        match &self.refused {
            Refused::Right { right, name } => {
                let name = String::from_utf8_lossy(name);
                write!(f, "no rule gives it the right {right} on {name:?}")
            }
            Refused::Unnamed => f.write_str("no rule names its certificate"),
            Refused::Quota { bound, max } => {
                write!(f, "its identity has all that {bound} = {max} of the rules allows")
            }
        }
    }
}

/// An identity that has clients, or objects that are counted.
#[derive(Clone, Debug, Default)]
struct Standing {
    names: Vec<String>,
    /// Indices of the rules that name the identity.
    rules: Vec<usize>,
    quotas: Quotas,
    clients: BTreeSet<ClientId>,
    /// The objects that this identity has created; some may not exist any more.
    objects: BTreeSet<ObjectId>,
}

impl Standing {
    fn of(names: &[String], rules: &[Rule]) -> Self {
        let mut standing = Self { names: names.to_vec(), ..Self::default() };
        standing.judge(rules);
        standing
    }

    fn judge(&mut self, rules: &[Rule]) {
        let mine = (0..rules.len()).filter(|&i| rules[i].is_for(&self.names));
        self.rules = mine.collect();
        let quotas = self.rules.iter().map(|&i| rules[i].quotas);
        self.quotas = quotas.fold(Quotas::default(), Quotas::lowest);
    }
}

/// The rules of one primary, and the clients to which they apply.
#[derive(Clone, Debug, Default)]
pub struct Access {
    rules: Vec<Rule>,
    known: BTreeMap<Identity, Standing>,
    clients: BTreeMap<ClientId, Identity>,
    /// The identity that created each object, if it was created while there were rules.
    creators: BTreeMap<ObjectId, Identity>,
    refusals: Vec<Refusal>,
}

impl Access {
    /// Whether there are no rules: everything is allowed.
    pub fn is_open(&self) -> bool {
        self.rules.is_empty()
    }

    /// Replaces the rules, also for clients that are members already.
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        for standing in self.known.values_mut() {
            standing.judge(&rules);
        }
        self.rules = rules;
    }

    /// Whether a certificate with these names may register one more client; `has`: how many clients
    /// it already has.
    ///
    /// # Errors
    /// `Denied`: no rule names the certificate. `ServerNoResource`: its quota of clients is used
    /// up.
    pub fn admit(
        &mut self,
        identity: Option<Identity>,
        names: &[String],
        has: usize,
    ) -> Result<(), Status> {
        if self.is_open() {
            return Ok(());
        }
        let standing = identity.map(|_| Standing::of(names, &self.rules)).unwrap_or_default();
        let refused = match standing.quotas.clients_max {
            _ if standing.rules.is_empty() => Refused::Unnamed,
            Some(max) if has >= max as usize => Refused::Quota { bound: "clients_max", max },
            _ => return Ok(()),
        };
        let peer = names.first().cloned().unwrap_or_default();
        Err(self.refuse(Refusal { client: None, peer, refused }))
    }

    /// Records a client that was let in, with the names of its certificate.
    pub fn enter(&mut self, client: ClientId, identity: Option<Identity>, names: &[String]) {
        let Some(identity) = identity else { return };
        let rules = &self.rules;
        let standing = self.known.entry(identity).or_insert_with(|| Standing::of(names, rules));
        standing.clients.insert(client);
        self.clients.insert(client, identity);
    }

    /// Forgets a client.
    pub fn leave(&mut self, client: ClientId) {
        let Some(identity) = self.clients.remove(&client) else { return };
        if let Some(standing) = self.known.get_mut(&identity) {
            standing.clients.remove(&client);
            if standing.clients.is_empty() && standing.objects.is_empty() {
                self.known.remove(&identity);
            }
        }
    }

    /// Whether a client has a right on the lock or object of this name.
    pub fn allows(&self, client: ClientId, right: Right, name: &[u8]) -> bool {
        self.is_open() || self.rules_of(client).any(|rule| rule.gives(right, name))
    }

    /// Like [`allows`](Self::allows), and records a refusal for the log.
    ///
    /// # Errors
    /// `Denied`: no rule gives the right.
    pub fn check(&mut self, client: ClientId, right: Right, name: &[u8]) -> Result<(), Status> {
        match self.allows(client, right, name) {
            true => Ok(()),
            false => {
                let refused = Refused::Right { right, name: name.to_vec() };
                Err(self.refuse_client(client, refused))
            }
        }
    }

    /// Whether a client may do everything with every lock and object. Only such a client may map
    /// the memory or reach it by a device, because no check keeps it from any word there.
    pub fn allows_everything(&self, client: ClientId) -> bool {
        let needed = [Right::Get, Right::LockShared, Right::LockExclusive, Right::Objects];
        let gives = |right| self.rules_of(client).any(|rule| rule.gives_everywhere(right));
        let is_needed =
            |right: &Right| *right != Right::Objects || !planted::is(Bug::ObjectsMapped);
        self.is_open() || needed.into_iter().filter(is_needed).all(gives)
    }

    /// The first name in a client's certificate.
    pub(crate) fn first_name(&self, client: ClientId) -> Option<&str> {
        self.standing(client)?.names.first().map(String::as_str)
    }

    /// The quotas of a client's identity.
    pub fn quotas(&self, client: ClientId) -> Quotas {
        self.standing(client).map(|standing| standing.quotas).unwrap_or_default()
    }

    /// The clients of a client's identity, including the client itself.
    pub fn fellows(&self, client: ClientId) -> impl Iterator<Item = ClientId> + '_ {
        self.standing(client).into_iter().flat_map(|standing| standing.clients.iter().copied())
    }

    /// Records a refusal because of a quota; returns its status.
    pub(crate) fn over(&mut self, client: ClientId, bound: &'static str, max: u32) -> Status {
        self.refuse_client(client, Refused::Quota { bound, max })
    }

    /// Whether a client may create one more object. `exists`: whether an object still exists.
    ///
    /// # Errors
    /// `ServerNoResource`: the quota of objects is used up.
    pub(crate) fn may_create(
        &mut self,
        client: ClientId,
        exists: impl Fn(ObjectId) -> bool,
    ) -> Result<(), Status> {
        let Some(max) = self.quotas(client).objects_max else { return Ok(()) };
        let Some(identity) = self.clients.get(&client) else { return Ok(()) };
        let Some(standing) = self.known.get_mut(identity) else { return Ok(()) };
        if standing.objects.len() >= max as usize {
            let creators = &mut self.creators;
            standing.objects.retain(|&object| {
                let is_kept = exists(object);
                if !is_kept {
                    creators.remove(&object);
                }
                is_kept
            });
        }
        match standing.objects.len() < max as usize {
            true => Ok(()),
            false => Err(self.over(client, "objects_max", max)),
        }
    }

    /// Records that a client has created an object.
    pub(crate) fn created(&mut self, client: ClientId, object: ObjectId) {
        let Some(&identity) = self.clients.get(&client) else { return };
        // An object counts even without a quota, because new rules may set one later.
        let before = match self.is_open() {
            false => self.creators.insert(object, identity),
            true => self.creators.remove(&object),
        };
        if let Some(standing) = before.and_then(|before| self.known.get_mut(&before)) {
            standing.objects.remove(&object);
        }
        if self.creators.contains_key(&object) {
            if let Some(standing) = self.known.get_mut(&identity) {
                standing.objects.insert(object);
            }
        }
    }

    /// If the creators of more than `max` objects are recorded, forgets those of objects that no
    /// longer exist.
    pub(crate) fn tidy(&mut self, max: usize, exists: impl Fn(ObjectId) -> bool) {
        if self.creators.len() <= max {
            return;
        }
        self.creators.retain(|&object, _| exists(object));
        let creators = &self.creators;
        self.known.retain(|identity, standing| {
            standing.objects.retain(|object| creators.get(object) == Some(identity));
            !standing.clients.is_empty() || !standing.objects.is_empty()
        });
    }

    /// Takes the refusals since the last call, at most the first [`REFUSALS_MAX`].
    pub fn take_refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Checks that every recorded client is `known`; for tests.
    pub(crate) fn is_of(&self, known: impl Fn(ClientId) -> bool) -> bool {
        let listed = self.known.values().map(|standing| standing.clients.len()).sum::<usize>();
        self.clients.keys().all(|&client| known(client)) && listed == self.clients.len()
    }

    fn standing(&self, client: ClientId) -> Option<&Standing> {
        self.known.get(self.clients.get(&client)?)
    }

    fn rules_of(&self, client: ClientId) -> impl Iterator<Item = &Rule> {
        let rules = self.standing(client).map_or(&[][..], |standing| &standing.rules[..]);
        rules.iter().filter_map(|&i| self.rules.get(i))
    }

    fn refuse_client(&mut self, client: ClientId, refused: Refused) -> Status {
        let name = self.standing(client).and_then(|standing| standing.names.first());
        let peer = name.cloned().unwrap_or_default();
        self.refuse(Refusal { client: Some(client), peer, refused })
    }

    fn refuse(&mut self, refusal: Refusal) -> Status {
        let status = match refusal.refused {
            Refused::Right { .. } | Refused::Unnamed => Status::Denied,
            Refused::Quota { .. } => Status::ServerNoResource,
        };
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(refusal);
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Lease;
    use crate::ids::{Handle, Slot};
    use crate::memory::word_op::{Word, WordAddr};
    use crate::memory::words::Ticket;

    fn client(id: u32) -> ClientId {
        ClientId::new(id).unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn rule(certificates: &[&str], prefixes: &[&str], rights: &[Right]) -> Rule {
        Rule {
            names: names(certificates),
            prefixes: prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect(),
            rights: rights.iter().copied().collect(),
            quotas: Quotas::default(),
        }
    }

    fn access(rules: Vec<Rule>) -> Access {
        let mut access = Access::default();
        access.set_rules(rules);
        access
    }

    /// Nothing keeps a client that has the memory mapped from any word in it.
    #[test]
    fn a_client_that_lacks_one_right_may_not_do_everything() {
        let all = [Right::LockShared, Right::LockExclusive, Right::Objects];
        let may = |rights: &[Right]| {
            let mut access = access(vec![rule(&["a"], &[""], rights)]);
            access.enter(client(1), Some(Identity([1; 32])), &names(&["a"]));
            access.allows_everything(client(1))
        };
        assert!(may(&all));
        for missing in all {
            let rest: Vec<Right> = all.into_iter().filter(|right| *right != missing).collect();
            assert!(!may(&rest), "without {missing}");
        }
    }

    #[test]
    fn of_several_bounds_of_a_quota_the_lowest_one_counts() {
        let quotas = |clients_max, locks_max, objects_max, waits_max| Quotas {
            clients_max,
            locks_max,
            objects_max,
            waits_max,
        };
        let one = quotas(Some(3), Some(1), None, Some(7));
        let other = quotas(Some(2), Some(4), Some(6), None);
        let both = quotas(Some(2), Some(1), Some(6), Some(7));
        for two in [[one, other], [other, one]] {
            let of = |quotas| Rule { quotas, ..rule(&["a"], &[""], &[Right::Get]) };
            let mut access = access(two.map(of).to_vec());
            access.enter(client(1), Some(Identity([1; 32])), &names(&["a"]));
            assert_eq!(access.quotas(client(1)), both);
        }
    }

    #[test]
    fn without_rules_everything_is_allowed_to_who_has_no_certificate_too() {
        let mut open = access(Vec::new());
        assert_eq!(open.admit(None, &[], 1_000), Ok(()));
        open.enter(client(1), None, &[]);
        for right in Right::ALL {
            assert_eq!(open.check(client(1), right, b"a"), Ok(()));
        }
        assert!(open.allows_everything(client(1)));
        assert_eq!(open.quotas(client(1)), Quotas::default());
    }

    #[test]
    fn with_rules_what_no_rule_gives_is_denied() {
        let mut access = access(vec![
            rule(&["DNS:a"], &["orders/"], &[Right::LockShared]),
            rule(&["CN=a", "DNS:b"], &["stock/", "shop/"], &[Right::LockExclusive]),
            rule(&["DNS:admin"], &[""], &[Right::Admin]),
        ]);
        let a = names(&["subject:CN=a", "CN=a", "DNS:a"]);
        assert_eq!(access.admit(Some(Identity([1; 32])), &a, 0), Ok(()));
        access.enter(client(1), Some(Identity([1; 32])), &a);
        access.enter(client(2), Some(Identity([2; 32])), &names(&["DNS:b"]));
        access.enter(client(3), Some(Identity([3; 32])), &names(&["DNS:c"]));
        access.enter(client(4), None, &[]);
        for (id, right, name, is_allowed) in [
            (1, Right::LockShared, "orders/7", true),
            (1, Right::Get, "orders/7", true), // the right to lock contains this one
            (1, Right::LockExclusive, "orders/7", false),
            (1, Right::LockExclusive, "stock/7", true),
            (1, Right::LockShared, "stock/7", false),
            (1, Right::LockExclusive, "shop/", true),
            (1, Right::LockExclusive, "shop", false),
            (1, Right::Objects, "stock/7", false),
            (1, Right::Admin, "", false),
            (2, Right::LockShared, "orders/7", false),
            (2, Right::LockExclusive, "stock/7", true),
            (3, Right::Get, "stock/7", false),
            (4, Right::Get, "stock/7", false),
        ] {
            let allowed = access.check(client(id), right, name.as_bytes());
            let expected = if is_allowed { Ok(()) } else { Err(Status::Denied) };
            assert_eq!(allowed, expected, "client {id}, {right} on {name}");
        }
        let told: Vec<String> = access.take_refusals().iter().map(Refusal::to_string).collect();
        assert_eq!(
            told[0],
            "client 1 (\"subject:CN=a\") is refused: no rule gives it the right lock-exclusive on \
             \"orders/7\""
        );
        assert_eq!(access.admit(None, &[], 0), Err(Status::Denied), "it shows no certificate");
        let c = names(&["DNS:c"]);
        assert_eq!(access.admit(Some(Identity([3; 32])), &c, 0), Err(Status::Denied));
        assert_eq!(access.take_refusals().len(), 2);
    }

    #[test]
    fn a_name_is_the_whole_name_and_the_star_is_every_certificate() {
        let of = |name: &str| {
            let mut access = access(vec![rule(&[name], &[""], &[Right::Get])]);
            access.admit(Some(Identity([1; 32])), &names(&["CN=node1", "DNS:node1"]), 0).is_ok()
        };
        for (name, is_named) in [
            ("CN=node1", true),
            ("*", true),
            ("node1", false),
            ("CN=node", false),
            ("DNS:*", false),
        ] {
            assert_eq!(of(name), is_named, "{name}");
        }
    }

    #[test]
    fn memory_is_for_who_may_do_everything() {
        let all = [Right::LockShared, Right::LockExclusive, Right::Objects];
        let mut access = access(vec![
            rule(&["DNS:a"], &[""], &all[..2]),
            rule(&["DNS:a", "DNS:c"], &["x", ""], &all[2..]),
            rule(&["DNS:b"], &["a", "b"], &all),
        ]);
        for (id, name) in [(1, "DNS:a"), (2, "DNS:b"), (3, "DNS:c")] {
            access.enter(client(id), Some(Identity([id as u8; 32])), &names(&[name]));
        }
        let may_map = |access: &Access, id| access.allows_everything(client(id));
        assert_eq!([1, 2, 3, 4].map(|id| may_map(&access, id)), [true, false, false, false]);
        access.set_rules(vec![rule(&["*"], &[""], &all)]);
        assert_eq!([1, 2, 3, 4].map(|id| may_map(&access, id)), [true, true, true, false]);
    }

    #[test]
    fn the_lowest_quota_counts_and_new_rules_count_at_once() {
        let quotas =
            |clients_max, waits_max| Quotas { clients_max, waits_max, ..Quotas::default() };
        let any = |quotas| Rule { quotas, ..rule(&["*"], &[""], &[Right::Get]) };
        let (one, two) = (any(quotas(Some(3), None)), any(quotas(Some(2), Some(7))));
        let mut access = access(vec![one.clone(), two]);
        let (identity, a) = (Some(Identity([1; 32])), names(&["DNS:a"]));
        access.enter(client(1), identity, &a);
        assert_eq!(access.quotas(client(1)), quotas(Some(2), Some(7)));
        assert_eq!(access.admit(identity, &a, 1), Ok(()));
        assert_eq!(access.admit(identity, &a, 2), Err(Status::ServerNoResource));
        let told = access.take_refusals()[0].to_string();
        assert!(told.ends_with("all that clients_max = 2 of the rules allows"), "{told}");
        access.set_rules(vec![one]);
        assert_eq!(access.admit(identity, &a, 2), Ok(()));
        assert_eq!(access.quotas(client(1)), quotas(Some(3), None));
    }

    #[test]
    fn who_has_left_is_forgotten_and_its_objects_count_until_they_are_gone() {
        let quotas = Quotas { objects_max: Some(2), ..Quotas::default() };
        let mut access = access(vec![Rule { quotas, ..rule(&["*"], &[""], &[Right::Objects]) }]);
        let (identity, a) = (Some(Identity([1; 32])), names(&["DNS:a"]));
        for id in 1..=2 {
            access.enter(client(id), identity, &a);
            assert_eq!(access.may_create(client(id), |_| true), Ok(()));
            access.created(client(id), ObjectId(id as i32));
            access.leave(client(id)); // the objects of a client may outlast it
        }
        access.enter(client(3), identity, &a);
        let refused = access.may_create(client(3), |_| true);
        assert_eq!(refused, Err(Status::ServerNoResource), "a new client does not start anew");
        // object 1 now counts for another identity
        access.enter(client(4), Some(Identity([2; 32])), &a);
        access.created(client(4), ObjectId(1));
        assert_eq!(access.may_create(client(3), |_| true), Ok(()));
        access.created(client(3), ObjectId(3));
        assert_eq!(access.may_create(client(3), |_| true), Err(Status::ServerNoResource));
        assert_eq!(access.may_create(client(3), |object| object == ObjectId(3)), Ok(()));
        access.leave(client(3));
        access.leave(client(4));
        access.tidy(0, |_| false);
        let is_empty = access.known.is_empty() && access.creators.is_empty();
        assert!(is_empty && access.is_of(|_| false));
    }

    #[test]
    fn refusals_are_bounded_until_they_are_taken() {
        let mut access = access(vec![rule(&["x"], &[""], &[Right::Get])]);
        for _ in 0..3 * REFUSALS_MAX {
            assert_eq!(access.check(client(1), Right::Get, b"a"), Err(Status::Denied));
        }
        assert_eq!(access.take_refusals().len(), REFUSALS_MAX);
        assert!(access.take_refusals().is_empty());
    }

    #[test]
    fn to_give_back_needs_no_right_and_to_take_does() {
        let addr = WordAddr::new(Slot(1), Word::W0);
        let cas = |swap| WordOp::Cas { addr, expect: 9, swap };
        let faa = |add| WordOp::Faa { addr, add };
        let mine = RwWord::new().with_client(7).into_bits();
        let (shared, exclusive) = (Some(Right::LockShared), Some(Right::LockExclusive));
        for (lock_type, word_op, needed) in [
            (LockType::Atomic, cas(5), exclusive),
            (LockType::Atomic, cas(0), None),
            (LockType::Rw, cas(mine), exclusive),
            (LockType::Rw, cas(RwWord::new().with_rcount(3).into_bits()), None),
            (LockType::Rw, faa(1), shared),
            (LockType::Rw, faa(u64::MAX), None),
            (LockType::Fair, faa(TakenWord::TAKE_SHARED), shared),
            (LockType::Fair, faa(TakenWord::TAKE_EXCLUSIVE), exclusive),
            (LockType::Fair, cas(5), None),
            (LockType::Fair, WordOp::Read { addr }, None),
        ] {
            assert_eq!(
                Right::for_word_op(lock_type, &word_op),
                needed,
                "{lock_type:?} {word_op:?}"
            );
        }
        let (handle, mode) = (Handle(1), Mode::Shared);
        let poll = Request::Poll { handle, mode, ticket: Ticket::default(), lease: Lease::secs(1) };
        assert_eq!(Right::for_request(&poll), shared);
        let take = Request::TakeTicket { handle, mode, lease: Lease::secs(1) };
        assert_eq!(Right::for_request(&take), shared);
        for (mode, needed) in [(Mode::Exclusive, exclusive), (mode, shared)] {
            let steal = Request::Steal { handle, mode, lease: Lease::secs(1) };
            assert_eq!(Right::for_request(&steal), needed);
        }
        let release = Request::Release { handle, mode, ticket: None };
        assert_eq!(Right::for_request(&release), None);
    }

    #[test]
    fn every_right_has_a_name_of_its_own() {
        for right in Right::ALL {
            assert_eq!(Right::of_name(right.name()), Some(right));
        }
        assert_eq!(Right::of_name("lock"), None);
    }

    #[test]
    fn an_identity_without_clients_and_objects_is_forgotten() {
        let mut access = access(vec![rule(&["a"], &[""], &[Right::Get])]);
        for id in 1..=3 {
            access.enter(client(id), Some(Identity([id as u8 / 3; 32])), &names(&["a"]));
        }
        assert_eq!(access.known.len(), 2);
        access.leave(client(1));
        assert_eq!(access.known.len(), 2, "its fellow is here");
        access.leave(client(2));
        access.leave(client(3));
        assert!(access.known.is_empty() && access.clients.is_empty());
    }

    #[test]
    fn a_second_more_of_a_lease_needs_the_right_to_lock() {
        let extend = |lease| Request::Extend {
            handle: Handle(0),
            mode: Mode::Exclusive,
            lease,
            ticket: None,
        };
        assert_eq!(Right::for_request(&extend(Lease::secs(1))), Some(Right::LockExclusive));
        assert_eq!(Right::for_request(&extend(Lease::NONE)), None, "it asks");
    }

    /// Two rules set all quotas: of each quota the lower value counts.
    #[test]
    fn the_lowest_of_two_values_of_each_bound_of_a_quota_counts() {
        let all = |max| Quotas {
            clients_max: Some(max),
            locks_max: Some(max),
            objects_max: Some(max),
            waits_max: Some(max),
        };
        let of_all = |max| Rule { quotas: all(max), ..rule(&["*"], &[""], &[Right::Get]) };
        for two in [[2, 5], [5, 2]] {
            let mut access = access(two.map(of_all).to_vec());
            access.enter(client(1), Some(Identity([1; 32])), &names(&["a"]));
            assert_eq!(access.quotas(client(1)), all(2));
        }
    }
}
