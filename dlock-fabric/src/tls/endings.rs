// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices that a certificate of this process, a CA or a revocation list ends: 30, 7 and 1 days
//! before, because every peer is refused afterwards. For short periods of validity only the last
//! third counts.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use x509_cert::der::{DateTime, Decode};
use x509_cert::Certificate;

use super::certificate::{self, CrlHead, Period};

const DAY_S: u64 = 86_400;
/// Days before the end at which a notice is due, in descending order; but only when less than a
/// third of the validity is left.
pub const NOTICE_DAYS: [u64; 3] = [30, 7, 1];

/// The end of a certificate or revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The name of the thing that ends: `the certificate of CN=node1`.
    pub what: String,
    /// The file of the certificate or list.
    pub path: PathBuf,
    /// The first second in which the certificate or list is valid, since 1970.
    since_s: u64,
    /// The last second in which the certificate or list is valid, since 1970.
    pub at_s: u64,
    remedy: &'static str,
}

impl Ending {
    /// The ends of the certificates in a file.
    pub(super) fn of_certificates(
        path: &Path,
        ders: &[CertificateDer<'_>],
        kind: &str,
        remedy: &'static str,
    ) -> Vec<Self> {
        let parsed = ders.iter().filter_map(|der| Certificate::from_der(der).ok());
        parsed
            .map(|parsed| {
                let period = Period::from(parsed.tbs_certificate().validity());
                let what = format!("the {kind} {}", certificate::subject(&parsed));
                let (since_s, at_s) = (period.not_before.as_secs(), period.not_after.as_secs());
                Self { what, path: path.into(), since_s, at_s, remedy }
            })
            .collect()
    }

    /// The ends of the revocation lists in a file.
    pub(super) fn of_lists(path: &Path, ders: &[CertificateRevocationListDer<'_>]) -> Vec<Self> {
        let heads = ders.iter().filter_map(|der| CrlHead::of(der).ok());
        heads
            .filter_map(|head| {
                let what = format!("the revocation list of {}", head.issuer);
                let remedy = "issue a new one, or every peer is refused";
                let (since_s, at_s) = (head.this_update.as_secs(), head.next_update?.as_secs());
                Some(Self { what, path: path.into(), since_s, at_s, remedy })
            })
            .collect()
    }

    /// Whole days until the end; `None`: it has ended.
    pub fn days_left_now(&self) -> Option<u64> {
        self.days_left(UnixTime::now().as_secs())
    }

    /// The notice for now; `None`: the end is far away.
    pub fn notice_now(&self) -> Option<String> {
        let now_s = UnixTime::now().as_secs();
        (self.notices(now_s) > 0).then(|| self.notice(now_s))
    }

    fn days_left(&self, now_s: u64) -> Option<u64> {
        self.at_s.checked_sub(now_s).map(|left| left / DAY_S)
    }

    /// The number of [`NOTICE_DAYS`] that have been reached; 0: no notice is due.
    fn notices(&self, now_s: u64) -> usize {
        let (left_s, valid_s) =
            (self.at_s.saturating_sub(now_s), self.at_s.saturating_sub(self.since_s));
        let is_late = left_s == 0 || left_s < valid_s / 3;
        let reached = |days: &&u64| is_late && left_s <= **days * DAY_S;
        NOTICE_DAYS.iter().filter(reached).count()
    }

    fn notice(&self, now_s: u64) -> String {
        let left = match self.days_left(now_s) {
            None => "has ended".into(),
            Some(0) => "ends in less than a day".to_string(),
            Some(1) => "ends in 1 day".to_string(),
            Some(days) => format!("ends in {days} days"),
        };
        format!("{self} {left} ({}); {}", self.date(), self.remedy)
    }

    /// The end as `2027-01-31T12:00:00Z`.
    pub fn date(&self) -> String {
        let date = DateTime::from_unix_duration(std::time::Duration::from_secs(self.at_s));
        date.map_or_else(|_| format!("{} s since 1970", self.at_s), |date| date.to_string())
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.what, self.path.display())
    }
}

/// The notices that were logged, so that each is logged once.
#[derive(Debug, Default)]
pub struct Told(Vec<(Ending, usize)>);

impl Told {
    /// The notices that are due now and were not returned before.
    pub fn due(&mut self, endings: &[Ending], now: UnixTime) -> Vec<String> {
        let now_s = now.as_secs();
        self.0.retain(|(ending, _)| endings.contains(ending));
        let mut due = Vec::new();
        for ending in endings {
            let notices = ending.notices(now_s) + usize::from(ending.days_left(now_s).is_none());
            let known = self.0.iter_mut().find(|(known, _)| known == ending);
            let before = known.as_ref().map_or(0, |(_, before)| *before);
            if notices > before {
                due.push(ending.notice(now_s));
            }
            match known {
                Some((_, before)) => *before = notices,
                None => self.0.push((ending.clone(), notices)),
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(days: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(days * DAY_S))
    }

    fn ending(since: u64, day: u64) -> Ending {
        Ending {
            what: "the certificate of CN=node".into(),
            path: "node.crt".into(),
            since_s: since * DAY_S,
            at_s: day * DAY_S,
            remedy: "renew it",
        }
    }

    #[test]
    fn a_list_for_a_week_that_is_issued_daily_is_not_spoken_of_unless_it_is_left_to_end() {
        let mut told = Told::default();
        let mut due = |day, issued| told.due(&[ending(issued, issued + 7)], at(day));
        assert!((0..30).all(|day| due(day, day).is_empty() && due(day, day.max(1) - 1).is_empty()));
        assert!(due(33, 29).is_empty());
        assert_eq!((due(34, 29).len(), due(35, 29).len(), due(36, 29).len()), (1, 1, 0));
        assert!(due(37, 29)[0].contains("has ended"));
    }

    #[test]
    fn each_notice_is_given_once_and_a_renewed_certificate_begins_anew() {
        let ending = |day| ending(0, day);
        let mut told = Told::default();
        let mut due = |day, until| told.due(&[ending(until)], at(day));
        assert_eq!(due(60, 100), Vec::<String>::new());
        assert_eq!(
            due(70, 100),
            ["the certificate of CN=node in node.crt ends in 30 days \
              (1970-04-11T00:00:00Z); renew it"]
        );
        assert!(due(71, 100).is_empty() && due(92, 100).is_empty());
        assert_eq!((due(93, 100).len(), due(94, 100).len()), (1, 0));
        assert_eq!((due(99, 100).len(), due(100, 100).len()), (1, 0));
        assert!(due(101, 100)[0].contains("has ended"));
        assert!(due(102, 100).is_empty());
        assert!(due(102, 200).is_empty());
        assert!(due(195, 200)[0].contains("ends in 5 days"));
    }
}
