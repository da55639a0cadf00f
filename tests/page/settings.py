"""Users, tokens, the audit log, exports, and what each role may."""

import re

from playwright.sync_api import expect

from .harness import check, session, test


@test(mock_only=True)
def user_is_added_and_removed(pool):
    """A short password is refused by the form, a user is added with a role, and removed after a question."""
    with session() as s:
        s.go("/settings")
        s.page.get_by_role("button", name="Add a user").click()
        s.page.get_by_role("dialog").get_by_role("textbox", name="Name").fill("paul")
        s.page.get_by_role("radio", name=re.compile("operate")).check()
        s.page.get_by_label(re.compile("Password")).fill("long enough")
        s.page.get_by_role("dialog").get_by_role("button", name="Add").click()
        row = s.page.get_by_role("row", name=re.compile("^paul"))
        expect(row).to_contain_text("operate")
        row.get_by_role("button", name="Remove").click()
        s.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(row).to_have_count(0)


@test(mock_only=True)
def token_is_shown_once(pool):
    """A token is shown when it is made and not again; revoking asks first."""
    with session() as s:
        s.go("/settings/tokens")
        s.page.get_by_role("button", name="Create a token").click()
        s.page.get_by_role("dialog").get_by_role("textbox", name="Name").fill("backup")
        s.page.get_by_role("dialog").get_by_role("button", name="Create").click()
        secret = s.page.locator(".secret code")
        expect(secret).to_have_text(re.compile("^shale_.{43}"))
        word = secret.inner_text()
        s.page.reload()
        expect(s.page.get_by_role("row", name=re.compile("^backup"))).to_be_visible()
        check(word not in s.page.content(), "the token is still in the page")
        s.page.get_by_role("row", name=re.compile("^backup")).get_by_role("button", name="Revoke").click()
        s.page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(s.page.get_by_role("row", name=re.compile("^backup"))).to_have_count(0)


@test(mock_only=True)
def audit_has_who_changed_what(pool):
    """A change is in the audit log with who, what and the outcome, and the log is filtered."""
    with session() as s:
        one = s.objects("volume")[0]
        s.patch(one, {"unit": "64K"})
        s.go("/settings/audit")
        expect(s.page.get_by_role("row").filter(has_text=one["name"])).to_contain_text('"unit": "64K"')
        s.page.get_by_role("searchbox", name="Filter the audit log").fill("nothing of that")
        expect(s.page.get_by_text("No entry contains 'nothing of that'.")).to_be_visible()


@test(mock_only=True)
def export_is_set_checked_and_its_fault_shown(pool):
    """Access to a share is set in its row; the address appears, a fault is shown, and the checks are listed."""
    with session() as s:
        one = s.objects("share")[0]
        s.go(f"/o/{one['id']}/exports")
        expect(s.page.get_by_role("row", name=re.compile("^NFS"))).to_contain_text("nas.example:/projects/home")
        ftp = s.page.get_by_role("textbox", name="Access by FTP").or_(s.page.get_by_role("combobox", name="Access by FTP"))
        ftp.fill("ro")
        ftp.press("Enter")
        expect(s.page.get_by_role("row", name=re.compile("^FTP"))).to_contain_text("vsftpd is not installed")
        s.page.get_by_role("button", name="Check as a client").click()
        expect(s.page.get_by_role("row", name=re.compile("samba"))).to_contain_text("warning")


@test(mock_only=True)
def reader_sees_and_changes_nothing(pool):
    """With the role read each control that changes is off and says why, and closed views say why."""
    with session() as s:
        s.steer(role="read")
        s.page.reload()
        one = s.objects("share")[0]
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name="change compression").click()
        expect(s.page.get_by_role("button", name="Apply")).to_be_disabled()
        expect(s.page.get_by_text("needs the role admin; yours is read").first).to_be_visible()
        for route, button in [(f"/o/{one['id']}/snapshots", "Take a snapshot"), (f"/o/{one['id']}/properties", "Destroy this share"), ("/jobs", "Start scrub")]:
            s.go(route)
            expect(s.page.get_by_role("button", name=button)).to_be_disabled()
        s.go("/settings")
        expect(s.page.get_by_text("The list of users is not shown: this needs the role admin")).to_be_visible()
        s.go(f"/o/{one['id']}/files")
        expect(s.page.get_by_text("The list of files is not shown")).to_be_visible()
