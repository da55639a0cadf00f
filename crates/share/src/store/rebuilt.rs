//! A new database, filled with the content of another one that can be read.

use std::collections::HashMap;

use redb::{Database, Durability, ReadableTable};

use super::database::{Meta, TABLES, write_meta};
use super::{FIRST_NUMBER, RESERVE};
use crate::contained::Contained;
use crate::failure::Result;
use crate::names;
use crate::overlay::{Key, Table};

/// Facts outside the tables.
pub(crate) struct Surviving {
    pub(crate) facts: HashMap<String, u64>,
    /// Whether nothing is lost.
    pub(crate) is_whole: bool,
    /// Two random numbers.
    pub(crate) random: [u64; 2],
}

/// The new database.
pub(crate) struct Rebuilt {
    database: Contained<Database>,
    /// The largest number of an inode or a file that was seen.
    largest: u64,
}

impl Rebuilt {
    pub(crate) fn new(database: Contained<Database>) -> Self {
        Self { database, largest: FIRST_NUMBER }
    }

    /// Enters pairs. All become durable with the last.
    pub(crate) fn write(&mut self, pairs: Vec<(Table, Key, Box<[u8]>)>) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        for table in Table::ALL {
            let mut written = transaction.open_table(TABLES[table as usize])?;
            for (_, key, value) in pairs.iter().filter(|(of, ..)| *of == table) {
                // In each table the key begins with an assigned number.
                self.largest = self.largest.max(super::number(key));
                written.insert(&key[..], &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Adds the facts, durably. Names get new cookies if the secret that determines them is lost.
    pub(crate) fn finish(mut self, surviving: &Surviving) -> Result<()> {
        let fact = |name: &str| surviving.facts.get(name).copied();
        let secret = match fact("secret") {
            Some(secret) => secret,
            None => {
                self.move_names(surviving.random[0])?;
                surviving.random[0]
            }
        };
        // Lost inodes may have had greater numbers than any that is left.
        let least = self.largest.saturating_add(RESERVE);
        let used = fact("used").unwrap_or(least);
        let meta = Meta {
            secret,
            used,
            reserved: fact("reserved").unwrap_or(used.saturating_add(RESERVE)),
            // Data without a known inode should be recovered, and not discarded.
            clean: !surviving.is_whole || fact("clean").unwrap_or(0) != 0,
            commit: fact("commit").unwrap_or(0),
            // No record of a log or journal is of a session that is not known.
            session: fact("session").unwrap_or(surviving.random[1] >> 1),
            replayed: fact("replayed").unwrap_or(0),
            loose: fact("loose").unwrap_or(used),
            // Another one than that of the space has the next opening pass over all numbers that
            // may have been handed out.
            generation: fact("generation").unwrap_or(0) as u32,
        };
        let mut transaction = self.database.begin_write()?;
        transaction.set_quick_repair(true);
        write_meta(&transaction, &meta)?;
        for table in TABLES {
            transaction.open_table(table)?;
        }
        Ok(transaction.commit()?)
    }

    fn move_names(&mut self, secret: u64) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        {
            let mut entries = transaction.open_table(TABLES[Table::Entries as usize])?;
            let mut all = Vec::new();
            for pair in entries.iter()? {
                let (key, value) = pair?;
                all.push((super::number(key.value()), value.value().to_vec()));
            }
            entries.retain(|_, _| false)?;
            for (directory, value) in all {
                let first = names::first_cookie(names::name_of(&value), secret);
                for cookie in first..first + names::TWINS_MAX {
                    let key = names::key(directory, cookie);
                    if entries.get(&key[..])?.is_none() {
                        entries.insert(&key[..], &value[..])?;
                        break;
                    }
                }
            }
        }
        Ok(transaction.commit()?)
    }
}
