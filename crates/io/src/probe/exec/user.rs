//! Who a command runs as: a name or number of `/etc/passwd`, with the groups that a login would have.
//!
//! The files are read by ourselves, because a static binary cannot rely on the C library's way to them; users of a
//! directory service are not found by name, only by number.

use std::fs;

/// A user with its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: libc::uid_t,
    pub(super) gid: libc::gid_t,
    /// Every group, the user's own included.
    pub(super) groups: Vec<libc::gid_t>,
}

impl User {
    /// Finds `name` in `/etc/passwd` and `/etc/group`. A number that is not there is a user alone, with the group of the same number.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let group = fs::read_to_string("/etc/group").unwrap_or_default();
        Self::parse(name, &passwd, &group).ok_or_else(|| {
            format!(
                "user `{name}` is not in /etc/passwd; a user of a directory service is given by its number"
            )
        })
    }

    fn parse(name: &str, passwd: &str, group: &str) -> Option<Self> {
        let number = name.parse::<libc::uid_t>().ok();
        let entry = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (login, _) = (fields.next()?, fields.next()?);
            let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            (login == name || number == Some(uid)).then_some((login, uid, gid))
        });
        let (login, uid, gid) = match (entry, number) {
            (Some(entry), _) => entry,
            (None, Some(uid)) => ("", uid, uid),
            (None, None) => return None,
        };
        let member = |line: &str| {
            let mut fields = line.split(':');
            let id = fields.nth(2)?.parse().ok()?;
            fields.next()?.split(',').any(|m| !m.is_empty() && m == login).then_some(id)
        };
        let mut groups = vec![gid];
        for id in group.lines().filter_map(member) {
            if !groups.contains(&id) {
                groups.push(id);
            }
        }
        Some(Self { uid, gid, groups })
    }

    /// Whether we are this user already, so that nothing has to be changed.
    pub(super) fn is_us(&self) -> bool {
        // SAFETY: have no conditions.
        unsafe { libc::geteuid() == self.uid && libc::getegid() == self.gid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nmonitor:x:999:998:,,,:/:/bin/false\n7:x:1007:1007::/:\n";
    const GROUP: &str =
        "root:x:0:\nadm:x:4:syslog,monitor\nmonitor:x:998:\nvideo:x:44:monitors\nssl:x:101:monitor\n";

    #[test]
    fn a_user_has_the_groups_of_a_login() {
        let monitor = User { uid: 999, gid: 998, groups: vec![998, 4, 101] };
        assert_eq!(User::parse("monitor", PASSWD, GROUP), Some(monitor.clone()));
        assert_eq!(User::parse("999", PASSWD, GROUP), Some(monitor));
    }

    #[test]
    fn a_number_needs_no_entry_and_a_name_does() {
        let alone = User { uid: 12345, gid: 12345, groups: vec![12345] };
        assert_eq!(User::parse("12345", PASSWD, GROUP), Some(alone));
        assert_eq!(User::parse("nobody-at-all", PASSWD, GROUP), None);
        assert_eq!(User::parse("", PASSWD, GROUP), None);
    }
}
