// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users by name or number, as operators write them.

use std::fs;

/// The file in which names are looked up. Users of a directory service are written as numbers.
const PASSWD: &str = "/etc/passwd";
/// Users in a list at most.
const USERS_MAX: usize = 64;

/// The ids of users, with commas between them: `postgres,1001`.
///
/// # Errors
/// The mistake and its remedy.
pub fn uids(list: &str) -> Result<Vec<u32>, String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    uids_of(&names.collect::<Vec<_>>())
}

/// The ids of users, each by its name or its number.
///
/// # Errors
/// The mistake and its remedy.
pub fn uids_of(names: &[impl AsRef<str>]) -> Result<Vec<u32>, String> {
    if names.len() > USERS_MAX {
        return Err(format!("{} users are too many: at most {USERS_MAX}", names.len()));
    }
    names.iter().map(|name| uid(name.as_ref())).collect()
}

/// The id of one user.
///
/// # Errors
/// `/etc/passwd` has no user with that name.
pub fn uid(name: &str) -> Result<u32, String> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    let passwd = fs::read_to_string(PASSWD).map_err(|error| format!("{PASSWD}: {error}"))?;
    uid_in(&passwd, name).ok_or_else(|| {
        let name = name.escape_debug();
        format!("there is no user \"{name}\" in {PASSWD}: write the number of the user")
    })
}

/// The name of the user as which this process acts, or else the number.
pub fn own() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
    name_in(&passwd, uid).unwrap_or_else(|| uid.to_string())
}

fn name_in(passwd: &str, uid: u32) -> Option<String> {
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|fields| fields.get(2).is_some_and(|id| id.parse() == Ok(uid)))?;
    user.first().filter(|name| !name.is_empty()).map(|name| name.to_string())
}

fn uid_in(passwd: &str, name: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_or_numbered() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npostgres:x:26:26::/var/lib/pgsql:/bin/sh\n";
        assert_eq!(uid_in(passwd, "postgres"), Some(26));
        assert_eq!(uid_in(passwd, "post"), None);
        assert_eq!(name_in(passwd, 26), Some("postgres".into()));
        assert_eq!(name_in(passwd, 27), None);
        assert_eq!(uids("root, 1001,").unwrap(), [0, 1001]);
        assert!(uids("no\nsuch").unwrap_err().contains("no user \"no\\nsuch\""));
        assert!(uids(&"1,".repeat(65)).is_err());
    }
}
