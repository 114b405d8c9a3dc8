// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of fabrics: the ways in which the data path of a client can run.
//!
//! ```text
//!   kind    on the wire   executes a client's chains      reachable by clients in recovery
//!   verbs   2             the primary's device            no: nothing there can refuse a chain
//!   shm     0             the client's own threads        yes: the memory has a gate
//!   sealed  3             the primary's command thread    yes: it refuses chains itself
//!   tcp     1             the primary's command thread    yes: as sealed
//! ```
//! This is the only list in the core: other code asks a [`FabricKind`] for its properties, so a new
//! fabric is one line below. CONTRIBUTING.md lists the modules that come with it.

use std::fmt;

/// Makes [`FabricKind`] and the properties of each kind.
macro_rules! fabrics {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal, $executes:ident;)*) => {
        /// A way in which the data path of a client runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum FabricKind {
            $($(#[$doc])* $kind = $number,)*
        }

        impl FabricKind {
            /// All kinds, in the order in which a client tries them.
            pub const ALL: [FabricKind; [$($number),*].len()] = [$(Self::$kind),*];

            /// The name that users write.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Where the chains of a client on this fabric are executed.
            pub const fn executes(self) -> Executes {
                match self {
                    $(Self::$kind => Executes::$executes,)*
                }
            }
        }
    };
}

fabrics! {
    /// RDMA verbs: one-sided, executed by the primary's device.
    Verbs = 2, "verbs", Device;
    /// Mapped memory on one host.
    Shm = 0, "shm", Client;
    /// Frames, sealed and sent over RDMA queue pairs, executed by the primary's command thread: the
    /// fabric that a TLS session uses instead of verbs.
    Sealed = 3, "sealed", Primary;
    /// Frames executed by the primary's command thread.
    Tcp = 1, "tcp", Primary;
}

/// Where the chains of a client are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executes {
    /// In the client's own threads, on memory that they have mapped: the client is fenced when its
    /// processes have ended.
    Client,
    /// In the primary, which checks each chain: the client is fenced when its channel is closed.
    Primary,
    /// In the primary's device: the client is fenced when the device reports that its queue pairs
    /// are closed.
    Device,
}

impl FabricKind {
    /// The kind with this number on the wire.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == number)
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether both ends need an RDMA device, so that the attach exchange carries queue pairs.
    pub const fn needs_device(self) -> bool {
        matches!(self, Self::Verbs | Self::Sealed)
    }

    /// All kinds that need no device, in the order in which a client tries them.
    pub fn without_device() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| !kind.needs_device())
    }
}

/// These names as part of a sentence; `last` joins the last two: `verbs, shm and tcp`.
pub fn listed(kinds: impl IntoIterator<Item = FabricKind>, last: &str) -> String {
    let names: Vec<&str> = kinds.into_iter().map(FabricKind::name).collect();
    match names.split_last() {
        Some((end, [])) => end.to_string(),
        Some((end, others)) => format!("{} {last} {end}", others.join(", ")),
        None => String::new(),
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of fabrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricSet(u64);

impl FabricSet {
    /// All kinds.
    pub fn all() -> Self {
        FabricKind::ALL.into_iter().collect()
    }

    /// Whether this kind is in the set.
    pub fn has(self, kind: FabricKind) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    fn bit(kind: FabricKind) -> u64 {
        1 << (kind as u8 % 64)
    }
}

impl FromIterator<FabricKind> for FabricSet {
    fn from_iter<I: IntoIterator<Item = FabricKind>>(kinds: I) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | Self::bit(kind)))
    }
}

/// The most fabrics that one primary may offer, including those that this library does not know.
pub const OFFERS_MAX: usize = 16;

/// The fabrics that a primary offers, each with the place where its clients attach. The meaning of
/// a place depends on the fabric. Most places are empty: clients attach at the port of the control
/// connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Number and place of each kind, in ascending order of numbers; kinds that this library does
    /// not know are kept.
    all: Vec<(u8, Vec<u8>)>,
}

impl Offers {
    /// No fabrics.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds this kind. A place has at most 255 bytes.
    #[must_use]
    pub fn with(mut self, kind: FabricKind, place: &[u8]) -> Self {
        self.all.retain(|(number, _)| *number != kind as u8);
        let at = self.all.partition_point(|(number, _)| *number < kind as u8);
        self.all.insert(at, (kind as u8, place.to_vec()));
        self
    }

    /// Removes this kind.
    #[must_use]
    pub fn without(mut self, kind: FabricKind) -> Self {
        self.all.retain(|(number, _)| *number != kind as u8);
        self
    }

    /// The place of this kind; `None`: the primary does not offer the kind.
    pub fn place(&self, kind: FabricKind) -> Option<&[u8]> {
        let found = self.all.iter().find(|(number, _)| *number == kind as u8);
        found.map(|(_, place)| place.as_slice())
    }

    /// Whether the primary offers this kind.
    pub fn has(&self, kind: FabricKind) -> bool {
        self.place(kind).is_some()
    }

    /// The offered kinds that this library knows.
    pub fn kinds(&self) -> FabricSet {
        FabricKind::ALL.into_iter().filter(|&kind| self.has(kind)).collect()
    }

    /// Numbers and places, for the codec.
    pub(crate) fn all(&self) -> &[(u8, Vec<u8>)] {
        &self.all
    }

    /// Adds a kind that this library may not know; its number must be above all others in the list.
    pub(crate) fn push(&mut self, number: u8, place: Vec<u8>) {
        self.all.push((number, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_one_kind_each() {
        for kind in FabricKind::ALL {
            assert_eq!(FabricKind::numbered(kind as u8), Some(kind));
            assert_eq!(FabricKind::named(kind.name()), Some(kind));
            assert!((kind as u8) < 64, "a set has 64 bits");
        }
        assert_eq!((FabricKind::numbered(63), FabricKind::named("auto")), (None, None));
    }

    #[test]
    fn names_are_listed_as_in_a_sentence() {
        use FabricKind::{Shm, Tcp, Verbs};
        assert_eq!(listed([], "and"), "");
        assert_eq!(listed([Tcp], "and"), "tcp");
        assert_eq!(listed([Shm, Tcp], "or"), "shm or tcp");
        assert_eq!(listed([Verbs, Shm, Tcp], "and"), "verbs, shm and tcp");
    }

    #[test]
    fn a_fabric_needs_a_device_or_not() {
        let (shm, verbs) = (FabricKind::Shm, FabricKind::Verbs);
        let without: Vec<_> = FabricKind::without_device().collect();
        assert!(without.contains(&shm) && !without.contains(&verbs));
        assert!(!without.contains(&FabricKind::Sealed));
        for kind in FabricKind::ALL {
            assert!(kind.executes() != Executes::Device || kind.needs_device(), "{kind}");
        }
    }

    #[test]
    fn numbers_on_the_wire_do_not_change() {
        use FabricKind::{Sealed, Shm, Tcp, Verbs};
        assert_eq!([Shm as u8, Tcp as u8, Verbs as u8, Sealed as u8], [0, 1, 2, 3]);
    }

    #[test]
    fn an_offer_is_found_by_its_kind_whatever_the_order() {
        let offers = Offers::none().with(FabricKind::Tcp, b"").with(FabricKind::Shm, b"name");
        assert_eq!(
            offers,
            Offers::none().with(FabricKind::Shm, b"name").with(FabricKind::Tcp, b"")
        );
        assert_eq!(offers.place(FabricKind::Shm), Some(&b"name"[..]));
        assert!(offers.has(FabricKind::Tcp) && !offers.has(FabricKind::Verbs));
        assert!(offers.kinds().has(FabricKind::Shm) && !offers.kinds().has(FabricKind::Verbs));
        assert!(!offers.without(FabricKind::Tcp).has(FabricKind::Tcp));
        assert_eq!(FabricSet::all(), FabricKind::ALL.into_iter().collect());
    }
}
