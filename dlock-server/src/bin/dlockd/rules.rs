// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[rules]]`: what clients may do, by the names in their certificates.

use std::net::IpAddr;
use std::ops::Range;

use dlock_core::rights::{Quotas, Right, Rule, ANY_NAME};
use serde::Deserialize;
use toml::Spanned;

/// The kinds of names, as `dlock_fabric::tls::PeerIdentity::rule_names` writes them.
const KINDS: [&str; 6] = ["subject:", "CN=", "DNS:", "IP:", "URI:", "email:"];

/// The keys of one rule; `dlockd.toml` explains them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleKeys {
    names: Spanned<Vec<Spanned<String>>>,
    prefixes: Option<Vec<String>>,
    rights: Option<Vec<Spanned<String>>>,
    clients_max: Option<u32>,
    locks_max: Option<u32>,
    objects_max: Option<u32>,
    waits_max: Option<u32>,
}

impl RuleKeys {
    /// Checks the keys, and makes the rule.
    ///
    /// # Errors
    /// A name or a right is not valid, there are no names, or neither rights nor quotas; and the
    /// place of the mistake.
    pub(crate) fn rule(self) -> Result<Rule, (Range<usize>, String)> {
        let Self { clients_max, locks_max, objects_max, waits_max, .. } = self;
        let at = |found: Spanned<String>, convert: fn(&str) -> Result<String, String>| {
            let place = found.span();
            convert(found.get_ref()).map_err(|what| (place, what))
        };
        let quotas = Quotas { clients_max, locks_max, objects_max, waits_max };
        // the file is half written, or a word was forgotten
        if self.names.get_ref().is_empty() {
            return Err((self.names.span(), "a rule without names is for nobody".to_string()));
        }
        let place = self.names.span();
        let names = self.names.into_inner().into_iter().map(|found| at(found, name));
        let names = names.collect::<Result<_, _>>()?;
        if self.rights.is_none() && quotas == Quotas::default() {
            let what = "this rule has neither rights nor a quota: rights = [] lets these in alone";
            return Err((place, what.to_string()));
        }
        let rights = self.rights.unwrap_or_default().into_iter().map(|found| {
            let unknown = || {
                let known = Right::ALL.map(Right::name).join(", ");
                (found.span(), format!("this is none of the rights {known}"))
            };
            Right::of_name(found.get_ref()).ok_or_else(unknown)
        });
        let prefixes = self.prefixes.unwrap_or_else(|| vec![String::new()]);
        Ok(Rule {
            names,
            prefixes: prefixes.into_iter().map(String::into_bytes).collect(),
            rights: rights.collect::<Result<_, _>>()?,
            quotas,
        })
    }
}

/// A certificate's name in the form that rules use.
fn name(text: &str) -> Result<String, String> {
    if let Some(address) = text.strip_prefix("IP:") {
        let address = address.parse::<IpAddr>();
        let address = address.map_err(|_| "this is no IPv4 or IPv6 address: give one in digits");
        return Ok(format!("IP:{}", address?));
    }
    match text == ANY_NAME || KINDS.iter().any(|kind| text.starts_with(kind)) {
        true => Ok(text.to_string()),
        false => Err(format!(
            "a name begins with one of {}, or is \"{ANY_NAME}\": \"dlock certs client NAME\" makes \
             CN=NAME",
            KINDS.join(" ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        rules: Vec<RuleKeys>,
    }

    fn parse(text: &str) -> Result<Rule, (Range<usize>, String)> {
        let file: File = toml::from_str(&format!("[[rules]]\n{text}")).unwrap();
        file.rules.into_iter().next().unwrap().rule()
    }

    #[test]
    fn a_rule_has_what_the_file_says_and_every_prefix_where_it_says_none() {
        let text = "names = [\"DNS:a\", \"IP:::0001\", \"*\"]\nprefixes = [\"x/\"]\n\
                    rights = [\"lock-shared\", \"objects\"]\nlocks_max = 7\n";
        let rule = parse(text).unwrap();
        assert_eq!(rule.names, ["DNS:a", "IP:::1", "*"]);
        assert_eq!(rule.prefixes, [b"x/"]);
        let has = Right::ALL.map(|right| rule.rights.has(right));
        assert_eq!(has, [true, true, false, true, false]);
        assert_eq!(rule.quotas, Quotas { locks_max: Some(7), ..Quotas::default() });
        let quota = parse("names = [\"CN=a\"]\nclients_max = 0\n").unwrap();
        assert_eq!(quota.prefixes, [b""]);
        assert_eq!(quota.quotas.clients_max, Some(0));
        assert!(!Right::ALL.iter().any(|&right| quota.rights.has(right)));
    }

    #[test]
    fn a_name_of_no_kind_and_an_unknown_right_are_told_with_their_places() {
        for (text, what) in [
            ("names = [\"node1\"]", "begins with one of"),
            ("names = [\"IP:node1\"]", "no IPv4 or IPv6"),
            ("names = [\"DNS:a\"]\nrights = [\"lock\"]", "lock-shared"),
            ("names = []\nrights = [\"get\"]", "for nobody"),
            ("names = [\"DNS:a\"]\nprefixes = [\"x\"]", "neither rights nor a quota"),
        ] {
            let (place, told) = parse(text).unwrap_err();
            assert!(told.contains(what), "{told}");
            assert!(place.start > "[[rules]]".len(), "{place:?}");
        }
    }
}
