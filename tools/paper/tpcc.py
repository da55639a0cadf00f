"""TPC-C's tables with data as the specification has it: random letters and digits of the lengths that it names; scaled by items and customers."""

import random

LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
TABLE = bytes(LETTERS[i % len(LETTERS)] for i in range(256))
SYLLABLES = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"]
DISTRICTS = 10
DATE = "2024-03-01 12:00:00"

SCHEMA = {
    "warehouse": "w_id int, w_name varchar(10), w_street varchar(40), w_city varchar(20), w_zip char(9), w_tax decimal(4,4), w_ytd decimal(12,2), primary key (w_id)",
    "district": "d_w_id int, d_id int, d_name varchar(10), d_street varchar(40), d_city varchar(20), d_zip char(9), d_tax decimal(4,4), d_ytd decimal(12,2), d_next_o_id int, primary key (d_w_id, d_id)",
    "customer": "c_w_id int, c_d_id int, c_id int, c_first varchar(16), c_middle char(2), c_last varchar(16), c_street varchar(40), c_city varchar(20), c_zip char(9), c_phone char(16), "
                "c_since timestamp, c_credit char(2), c_credit_lim decimal(12,2), c_discount decimal(4,4), c_balance decimal(12,2), c_ytd_payment decimal(12,2), c_payment_cnt int, "
                "c_delivery_cnt int, c_data varchar(500), primary key (c_w_id, c_d_id, c_id)",
    "history": "h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamp, h_amount decimal(6,2), h_data varchar(24)",
    "orders": "o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamp, o_carrier_id int, o_ol_cnt int, o_all_local int, primary key (o_w_id, o_d_id, o_id)",
    "new_orders": "no_w_id int, no_d_id int, no_o_id int, primary key (no_w_id, no_d_id, no_o_id)",
    "order_line": "ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int, ol_delivery_d timestamp null, ol_quantity int, ol_amount decimal(6,2), "
                  "ol_dist_info char(24), primary key (ol_w_id, ol_d_id, ol_o_id, ol_number)",
    "item": "i_id int, i_im_id int, i_name varchar(24), i_price decimal(5,2), i_data varchar(50), primary key (i_id)",
    "stock": "s_w_id int, s_i_id int, s_quantity int, s_dist char(240), s_ytd int, s_order_cnt int, s_remote_cnt int, s_data varchar(50), primary key (s_w_id, s_i_id)",
}
INDEXES = ["create index customer_by_name on customer (c_w_id, c_d_id, c_last, c_first)", "create index orders_by_customer on orders (o_w_id, o_d_id, o_c_id, o_id)"]


class Words:
    """Random strings, cut from random bytes that are made into letters a megabyte at a time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.text, self.at = "", 0

    def __call__(self, least, most=None):
        length = self.random.randint(least, most) if most else least
        if self.at + length > len(self.text):
            self.text, self.at = self.random.randbytes(1 << 20).translate(TABLE).decode("ascii"), 0
        self.at += length
        return self.text[self.at - length:self.at]


def last_name(number):
    """As the specification makes them."""
    return "".join(SYLLABLES[number // f % 10] for f in (100, 10, 1))


def customers_of(items):
    """Customers of a district: 3,000 for 100,000 items, as in the specification."""
    return max(items * 3000 // 100_000, 30)


def write(directory, warehouses, items):
    """Makes TABLE.tsv for each table."""
    w = Words(10)
    r = w.random
    customers = customers_of(items)
    files = {name: open(directory / f"{name}.tsv", "w", encoding="ascii") for name in SCHEMA}

    def row(table, *values):
        files[table].write("\t".join(map(str, values)) + "\n")
    for i in range(1, items + 1):
        row("item", i, r.randint(1, 10000), w(14, 24), f"{r.uniform(1, 100):.2f}"[:6], w(26, 50))
    for warehouse in range(1, warehouses + 1):
        row("warehouse", warehouse, w(6, 10), w(20, 40), w(10, 20), w(4) + "11111", f"{r.uniform(0, 0.2):.4f}", "300000.00")
        for i in range(1, items + 1):
            row("stock", warehouse, i, r.randint(10, 100), w(240), 0, 0, 0, w(26, 50))
        for district in range(1, DISTRICTS + 1):
            row("district", warehouse, district, w(6, 10), w(20, 40), w(10, 20), w(4) + "11111", f"{r.uniform(0, 0.2):.4f}", "30000.00", customers + 1)
            order = list(range(1, customers + 1))
            r.shuffle(order)
            for customer in range(1, customers + 1):
                name = last_name(customer - 1 if customer <= 1000 else r.randint(0, 255) | r.randint(0, 999) if r.random() < 0.5 else r.randint(0, 999))
                row("customer", warehouse, district, customer, w(8, 16), "OE", name, w(20, 40), w(10, 20), w(4) + "11111", f"{r.randrange(10 ** 16):016}", DATE,
                    "BC" if r.random() < 0.1 else "GC", "50000.00", f"{r.uniform(0, 0.5):.4f}", "-10.00", "10.00", 1, 0, w(300, 500))
                row("history", customer, district, warehouse, district, warehouse, DATE, "10.00", w(12, 24))
            for number, customer in enumerate(order, 1):
                lines, is_new = r.randint(5, 15), number > customers * 7 // 10
                row("orders", warehouse, district, number, customer, DATE, 0 if is_new else r.randint(1, 10), lines, 1)
                if is_new:
                    row("new_orders", warehouse, district, number)
                for line in range(1, lines + 1):
                    row("order_line", warehouse, district, number, line, r.randint(1, items), warehouse, DATE, 5, f"{r.uniform(0.01, 9999) if is_new else 0:.2f}", w(24))
    for file in files.values():
        file.close()
